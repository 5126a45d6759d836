// Several ranks, each a process, save one checkpoint: all of it or nothing, whatever happens to any of them.
#include <sys/ptrace.h>
#include <sys/resource.h>

#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/training_state.h"
#include "tests/checkpoint/layouts.h"
#include "tests/checkpoint/process_ranks.h"
#include "tests/checkpoint/scratch.h"

namespace yoke::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kRanks = 3;
const MeshSizes kMesh{.data = kRanks};

/// Two tensors whose elements follow from the step, cut by rows and flat, and by columns.
struct State {
  explicit State(int64_t step) : step(step) {
    std::mt19937_64 random(9);
    for (InventedTensor* t : {&matrix, &wide}) *t = InventedTensor(random);
    matrix.global = {70, 30}, matrix.parts = {40, 20, 10};
    wide.global = {20, 50}, wide.parts = {20};
    for (const InventedTensor* t : {&matrix, &wide}) {
      auto& all = values.emplace_back(static_cast<size_t>(t->global.elements()));
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i * 7 + static_cast<size_t>(step) * 1009);
    }
  }

  std::vector<StatePiece> pieces(const Mesh& mesh) {
    const auto ranks = static_cast<int64_t>(mesh.sizes().ranks()), rank = static_cast<int64_t>(mesh.rank());
    std::vector<StatePiece> pieces;
    add(pieces, 0, matrix.split(1, 2, ranks, 1, 1).ranks[static_cast<size_t>(rank)]);
    add(pieces, 1, wide.split(ranks, 1, 1, 1, 1).ranks[static_cast<size_t>(rank)]);
    return pieces;
  }
  json document() const { return {{"step", step}}; }

  int64_t step;
  InventedTensor matrix{seed()}, wide{seed()};
  std::vector<std::vector<int32_t>> values;

 private:
  static std::mt19937_64& seed() {
    static std::mt19937_64 random(1);
    return random;
  }
  void add(std::vector<StatePiece>& pieces, size_t t, const InventedRank& rank) {
    const Shape global = rank.layout.global;
    for (const FlatPiece& piece : flat_pieces(rank.layout, rank.written)) {
      pieces.push_back({t == 0 ? "matrix" : "wide", DType::i32, global, piece.region, [this, t, global, piece] {
                          buffer_.resize(static_cast<size_t>(piece.region.shape.elements()));
                          for_each_run(piece.region, Region::whole(global), [&](int64_t to, int64_t from, int64_t n) {
                            std::copy_n(values[t].begin() + from, n, buffer_.begin() + to);
                          });
                          return TensorView(buffer_.data(), DType::i32, piece.region.shape);
                        }});
    }
  }
  std::vector<int32_t> buffer_;
};

void save(const Parallel& parallel, const fs::path& folder, int64_t step, int keep = 3) {
  State state(step);
  save_checkpoint(parallel, folder, step, state.document(), state.pieces(parallel.mesh()), keep);
}

void expect_whole(const Checkpoint& checkpoint) {
  const State expected(checkpoint.step());
  EXPECT_EQ(checkpoint.state(), expected.document());
  for (const auto& [name, t] : {std::pair("matrix", 0), std::pair("wide", 1)}) {
    const auto& want = expected.values[static_cast<size_t>(t)];
    const Shape shape = t == 0 ? expected.matrix.global : expected.wide.global;
    std::vector<int32_t> got(want.size());
    checkpoint.read(name, shape, Region::whole(shape), TensorView(got.data(), DType::i32, shape));
    EXPECT_EQ(got, want) << name;
  }
}

std::vector<int64_t> whole_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& entry : find_checkpoints(folder, CheckDepth::hashes)) {
    if (entry.fault.empty()) steps.push_back(entry.step);
  }
  return steps;
}

/// Everything that is in a folder, by name.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(SharedSave, EveryRankWritesItsPieces) {
  const Scratch scratch;
  for (const RankEnd& end : run_ranks(kMesh, [&](const Parallel& p) { save(p, scratch / "c", 7); })) {
    EXPECT_EQ(end.status, 0);
    EXPECT_EQ(end.message, "");
  }
  EXPECT_EQ(names_in(scratch / "c"), std::vector<std::string>{"step-000007"});
  EXPECT_EQ(names_in(scratch / "c" / "step-000007"),
            (std::vector<std::string>{"complete", "manifest.json", "rank-0000-00001.safetensors",
                                      "rank-0001-00001.safetensors", "rank-0002-00001.safetensors", "state.json"}));
  expect_whole(*Checkpoint::newest(scratch / "c"));
}

TEST(SharedSave, AllRanksReadTheSameCheckpoint) {
  const Scratch scratch;
  save(Parallel::self(), scratch / "c", 7);
  save(Parallel::self(), scratch / "c", 8);
  const auto load = [&](const Parallel& p) {
    const auto checkpoint = Checkpoint::newest(scratch / "c", p);
    expect_whole(*checkpoint);
    fail_usage("{}", HasFailure() ? -1 : checkpoint->step());
  };
  for (const RankEnd& end : run_ranks(kMesh, load)) EXPECT_EQ(end.message, "8");
  // One byte of one file, which one of the ranks looks into: none of them takes it.
  const fs::path file = scratch / "c" / "step-000008" / "rank-0000-00001.safetensors";
  std::string content = read_file(file);
  content[content.size() - 5] ^= 4;
  write_file(file, content);
  for (const RankEnd& end : run_ranks(kMesh, load)) EXPECT_EQ(end.message, "7");
}

/// Whatever happened to ranks that saved step 3 over 1 and 2.
void expect_survived(const fs::path& folder) {
  clean_checkpoints(folder);
  const auto newest = Checkpoint::newest(folder);
  ASSERT_NE(newest, nullptr);
  EXPECT_TRUE(newest->step() == 2 || newest->step() == 3) << newest->step();
  expect_whole(*newest);
  for (const std::string& name : names_in(folder)) EXPECT_TRUE(name.starts_with("step-")) << name;
}

// Case 20, on each of several ranks: killed at every system call of a save.
TEST(SharedSave, ARankKilledAtEverySystemCall) {
  const Scratch scratch(Scratch::Where::memory);
  int kills = 0;
  for (int victim = 0; victim < kRanks; ++victim) {
    bool ended = false;
    for (int n = 0; !ended; ++n) {
      const fs::path folder = scratch / fmt::format("c-{}-{}", victim, n);
      save(Parallel::self(), folder, 1);
      save(Parallel::self(), folder, 2);
      bool permitted = true;
      const auto work = [&](const Parallel& p) {
        if (p.mesh().rank() == victim) {
          if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(99);
          ::raise(SIGSTOP);
        }
        save(p, folder, 3, 1);
      };
      const auto kill = [&](pid_t pid) {
        siginfo_t info{};
        for (int stops = 0;; ++stops) {
          // Without reaping: the end is run_ranks' to see.
          ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WSTOPPED | WNOWAIT);
          ended = info.si_code == CLD_EXITED;
          permitted = permitted && !(ended && info.si_status == 99);
          if (ended) return;
          int status = 0;
          ::waitpid(pid, &status, 0);
          if (stops == n) {
            ::kill(pid, SIGKILL);
            return;
          }
          ::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
        }
      };
      const auto ends = run_ranks(kMesh, work, victim, kill);
      if (!permitted) GTEST_SKIP() << "this machine doesn't permit ptrace";
      expect_survived(folder);
      for (int r = 0; r < kRanks && !ended; ++r) {
        const RankEnd& end = ends[static_cast<size_t>(r)];
        // Those that were not killed ended by themselves: lost their peer, or were through already.
        EXPECT_TRUE(r == victim || (end.status == 0 && (end.code == 0 || end.code == 7))) << end.message;
      }
      run_ranks(kMesh, [&](const Parallel& p) { save(p, folder, 4, 1); });  // what is left is no obstacle
      EXPECT_EQ(whole_steps(folder), std::vector<int64_t>{4});
      if (HasFailure()) FAIL() << "rank " << victim << " killed at stop " << n;
      fs::remove_all(folder);
      kills += !ended;
    }
  }
  EXPECT_GT(kills, 100);
  fmt::print("killed at {} stops\n", kills);
}

/// After a save that failed on all ranks with one message.
void expect_failed(const std::vector<RankEnd>& ends, const fs::path& folder, const std::string& part, ExitCode code) {
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.status, 0);
    EXPECT_EQ(end.code, static_cast<int>(code)) << end.message;
    EXPECT_CONTAINS(end.message, part);
    EXPECT_EQ(end.message, ends[0].message);
  }
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"step-000001"});
  EXPECT_EQ(whole_steps(folder), std::vector<int64_t>{1});
}

// Case 20: the disk of one of several ranks takes no more, at every position.
TEST(SharedSave, AFileSizeLimitOnOneRank) {
  const Scratch scratch(Scratch::Where::memory);
  const fs::path folder = scratch / "c";
  save(Parallel::self(), folder, 1);
  ::signal(SIGXFSZ, SIG_IGN);
  for (int victim = 0; victim < kRanks; ++victim) {
    for (uint64_t limit = 0; limit < 4000; limit += limit < 40 ? 4 : 331) {
      const auto ends = run_ranks(kMesh, [&](const Parallel& p) {
        if (p.mesh().rank() == victim) {
          const rlimit limited{limit, limit};
          ::setrlimit(RLIMIT_FSIZE, &limited);
        }
        save(p, folder, 2);
      });
      expect_failed(ends, folder, fmt::format("rank {} on host ", victim), ExitCode::bad_file);
      if (HasFailure()) FAIL() << "limit " << limit << " on rank " << victim;
    }
  }
  run_ranks(kMesh, [&](const Parallel& p) { save(p, folder, 2); });
  EXPECT_EQ(whole_steps(folder), (std::vector<int64_t>{2, 1}));
}

TEST(SharedSave, AFolderThatIsNotShared) {
  const Scratch scratch;
  for (const char* host : {"a", "b"}) fs::create_directories(scratch / host / "c");
  save(Parallel::self(), scratch / "a" / "c", 1);
  const auto ends = run_ranks(kMesh, [&](const Parallel& p) {
    fs::current_path(scratch / (p.mesh().rank() == 2 ? "b" : "a"));
    save(p, "c", 2);
  });
  expect_failed(ends, scratch / "a" / "c", "rank 2 on host ", ExitCode::usage);
  EXPECT_CONTAINS(ends[0].message, "/b/c/.step-000002.unfinished is not the folder that rank 0");
  EXPECT_CONTAINS(ends[0].message, "on a file system that every host mounts");
  EXPECT_TRUE(fs::is_empty(scratch / "b" / "c"));
}

}  // namespace
}  // namespace yoke::test
