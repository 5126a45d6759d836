#include "checkpoint/training_state.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>
#include <random>

#include "base/log.h"
#include "checkpoint/manifest.h"
#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using test::Scratch;

/// A training state whose every byte follows from the step, in three tensors of different types.
struct State {
  explicit State(int64_t step, size_t elements = 3000)
      : step(step), weights(elements), moments(elements / 2), flags(7) {
    std::mt19937 random(static_cast<unsigned>(step));
    for (float& x : weights) x = static_cast<float>(random()) / 7;
    for (auto& x : moments) x.bits = static_cast<uint16_t>(random());
    for (auto& x : flags) x = static_cast<uint8_t>(random());
  }

  json document() const { return {{"step", step}, {"loader", {{"position", step * 17}}}, {"seed", UINT64_MAX}}; }

  std::vector<StatePiece> pieces() {
    const auto piece = [](const char* name, DType dtype, void* data, Shape shape) {
      return StatePiece{name, dtype, shape, Region::whole(shape), [=] { return TensorView(data, dtype, shape); }};
    };
    const auto w = static_cast<int64_t>(weights.size()), m = static_cast<int64_t>(moments.size());
    return {piece("flags", DType::u8, flags.data(), {7}), piece("weights", DType::f32, weights.data(), {w / 10, 10}),
            piece("moments", DType::bf16, moments.data(), {m})};
  }

  int64_t step;
  std::vector<float> weights;
  std::vector<bf16> moments;
  std::vector<uint8_t> flags;
};

void save(const fs::path& folder, int64_t step, int keep = 3) {
  State state(step);
  save_checkpoint(Parallel::self(), folder, step, state.document(), state.pieces(), keep);
}

/// The checkpoint holds exactly what State(step) has.
void expect_whole(const Checkpoint& checkpoint) {
  State expected(checkpoint.step());
  EXPECT_EQ(checkpoint.state(), expected.document());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"flags", "moments", "weights"}));
  for (const StatePiece& piece : expected.pieces()) {
    const TensorView want = piece.view();
    std::vector<uint8_t> got(want.bytes());
    checkpoint.read(piece.name, piece.global, piece.region, TensorView(got.data(), piece.dtype, piece.global));
    EXPECT_EQ(std::memcmp(got.data(), want.data, got.size()), 0) << piece.name;
  }
}

std::vector<int64_t> whole_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& entry : find_checkpoints(folder, CheckDepth::hashes)) {
    if (entry.fault.empty()) steps.push_back(entry.step);
  }
  return steps;
}

size_t entries(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(TrainingState, RoundTripAndKeep) {
  const Scratch scratch;
  const fs::path folder = scratch / "checkpoints";
  EXPECT_EQ(Checkpoint::newest(folder), nullptr);
  for (const int64_t step : {100, 200, 300, 400}) save(folder, step, 2);
  EXPECT_EQ(whole_steps(folder), (std::vector<int64_t>{400, 300}));
  EXPECT_TRUE(fs::exists(folder / "step-000400" / kMarkerFile));
  expect_whole(*Checkpoint::newest(folder));
  save(folder, 400, 2);  // a step that is there already is replaced
  save(folder, 50, 1);   // the one just written stays, whatever its number
  EXPECT_EQ(whole_steps(folder), (std::vector<int64_t>{50}));
  EXPECT_EQ(entries(folder), 1u);
  save(folder, 1234567);
  EXPECT_EQ(whole_steps(folder), (std::vector<int64_t>{1234567, 50}));
}

TEST(TrainingState, EveryDamageIsFoundAndSkipped) {
  const Scratch scratch(Scratch::Where::memory);
  const fs::path folder = scratch / "checkpoints";
  save(folder, 1);
  save(folder, 2);
  const fs::path newest = folder / "step-000002";
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(newest)) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 4u);
  const auto expect_skipped = [&](const std::string& why) {
    const auto found = find_checkpoints(folder, CheckDepth::hashes);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_NE(found[0].fault, "") << why;
    EXPECT_EQ(found[1].fault, "");
    EXPECT_EQ(Checkpoint::newest(folder)->step(), 1) << why;
    EXPECT_CONTAINS(error_of([&] { Checkpoint{newest}; }), "can't be resumed from");
  };
  for (const fs::path& file : files) {
    const std::string content = read_file(file);
    fs::remove(file);
    expect_skipped(file.string() + " is missing");
    const size_t stride = std::max<size_t>(1, content.size() / 40);
    for (size_t at = 0; at < content.size(); at += stride) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      write_file(file, damaged);
      expect_skipped(fmt::format("{} differs at {}", file.string(), at));
      write_file(file, content.substr(0, at));
      expect_skipped(fmt::format("{} is cut at {}", file.string(), at));
    }
    write_file(file, content);
    EXPECT_EQ(Checkpoint::newest(folder)->step(), 2);
  }
  fs::remove(newest / kMarkerFile);
  EXPECT_CONTAINS(find_checkpoints(folder, CheckDepth::sizes)[0].fault, "never completed");
  save(folder, 3, 2);  // the incomplete one doesn't count
  EXPECT_EQ(whole_steps(folder), (std::vector<int64_t>{3, 1}));
}

TEST(TrainingState, AnyRegionOfAnyCut) {
  const Scratch scratch;
  const Shape global{6, 5, 8};
  std::vector<int32_t> all(static_cast<size_t>(global.elements()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  std::vector<int32_t> buffer;
  // The elements of a box, in order.
  const auto box = [&](const Region& r) {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < r.shape[0]; ++i) {
      for (int64_t j = 0; j < r.shape[1]; ++j) {
        for (int64_t k = 0; k < r.shape[2]; ++k) {
          values.push_back(all[static_cast<size_t>(((i + r.offset[0]) * 5 + j + r.offset[1]) * 8 + k + r.offset[2])]);
        }
      }
    }
    return values;
  };
  // Cut 4 + 2 in the first dimension and 3 + 5 in the last.
  std::vector<StatePiece> pieces;
  for (const auto& [i, di] : {std::pair<int64_t, int64_t>{0, 4}, {4, 2}}) {
    for (const auto& [k, dk] : {std::pair<int64_t, int64_t>{0, 3}, {3, 5}}) {
      const Region region{{i, 0, k}, {di, 5, dk}};
      pieces.push_back({"t", DType::i32, global, region, [&buffer, &box, region] {
                          buffer = box(region);
                          return TensorView(buffer.data(), DType::i32, region.shape);
                        }});
    }
  }
  save_checkpoint(Parallel::self(), scratch / "c", 1, {}, pieces, 1);
  const auto checkpoint = Checkpoint::newest(scratch / "c");
  for (const Region& region : {Region::whole(global), Region{{0, 0, 0}, {1, 1, 1}}, Region{{3, 1, 2}, {2, 3, 4}},
                               Region{{5, 4, 7}, {1, 1, 1}}, Region{{1, 0, 3}, {5, 5, 5}}}) {
    std::vector<int32_t> got(static_cast<size_t>(region.shape.elements()), -1);
    checkpoint->read("t", global, region, TensorView(got.data(), DType::i32, region.shape));
    EXPECT_EQ(got, box(region));
  }
  // A manifest that lost a piece, its marker made to fit.
  const fs::path manifest = checkpoint->path() / kManifestFile;
  json document = json::parse(read_file(manifest));
  document["tensors"]["t"]["pieces"].erase(3);
  write_file(manifest, document.dump());
  write_file(checkpoint->path() / kMarkerFile, hash_hex(document.dump().data(), document.dump().size()) + "\n");
  std::vector<int32_t> got(static_cast<size_t>(global.elements()));
  const auto partial = Checkpoint::newest(scratch / "c");
  const auto read = [&](const char* name, const Shape& shape, DType dtype) {
    return error_of([&] { partial->read(name, shape, Region::whole(shape), TensorView(got.data(), dtype, shape)); });
  };
  EXPECT_CONTAINS(read("t", global, DType::i32), "hold 190 of the 240 elements");
  EXPECT_CONTAINS(read("x", global, DType::i32), "has no tensor 'x'");
  EXPECT_CONTAINS(read("t", {6, 8, 5}, DType::i32), "needs int32 [6, 8, 5]");
  EXPECT_CONTAINS(read("t", global, DType::f32), "needs fp32 [6, 5, 8]");
}

/// Whatever happened to the process that saved `attempted` over `before`: the older one loads, or the new one is whole.
void expect_survived(const fs::path& folder, int64_t before, int64_t attempted) {
  clean_checkpoints(folder);
  const auto newest = Checkpoint::newest(folder);
  ASSERT_NE(newest, nullptr);
  EXPECT_TRUE(newest->step() == before || newest->step() == attempted) << newest->step();
  expect_whole(*newest);
  for (const auto& entry : fs::directory_iterator(folder)) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
  }
}

/// Runs `work` in a child that is killed at its n-th system call; false when it ended before that, -1 when tracing
/// isn't permitted.
int killed_at_call(int n, const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(99);
    ::raise(SIGSTOP);
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) return -1;
  for (int stops = 0;; ++stops) {
    if (stops == n) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return 1;
    }
    if (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) return -1;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) || WIFSIGNALED(status)) return 0;
  }
}

// Case 20: killed at the entry and at the exit of every single system call of a save that also replaces and removes.
TEST(TrainingState, KilledAtEverySystemCall) {
  const Scratch scratch(Scratch::Where::memory);
  int kills = 0;
  for (const bool replacing : {false, true}) {
    for (int n = 0;; ++n) {
      const fs::path folder = scratch / fmt::format("c-{}-{}", replacing, n);
      save(folder, 1);
      save(folder, 2);
      const int64_t attempted = replacing ? 2 : 3;
      const int result = killed_at_call(n, [&] { save(folder, attempted, 1); });
      if (result < 0) GTEST_SKIP() << "this machine doesn't permit ptrace";
      expect_survived(folder, 2, attempted);
      if (HasFailure()) FAIL() << "killed at stop " << n;
      if (result == 0) break;
      save(folder, 4, 1);  // what the kill left behind is no obstacle
      EXPECT_EQ(whole_steps(folder), (std::vector<int64_t>{4}));
      fs::remove_all(folder);
      ++kills;
    }
  }
  EXPECT_GT(kills, 100);
  fmt::print("killed at {} stops\n", kills);
}

TEST(TrainingState, KilledAtRandomMoments) {
  const Scratch scratch;
  const fs::path folder = scratch / "checkpoints";
  save(folder, 1);
  std::mt19937 random(7);
  for (int round = 0; round < 25; ++round) {
    const int64_t before = Checkpoint::newest(folder)->step();
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t step = before + 1;; ++step) save(folder, step, 2);
    }
    ::usleep(static_cast<useconds_t>(random() % 30000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    clean_checkpoints(folder);
    const auto newest = Checkpoint::newest(folder);
    ASSERT_NE(newest, nullptr);
    EXPECT_GE(newest->step(), before);
    expect_whole(*newest);
  }
}

/// Saving step 2 over step 1 fails with a UserError, cleans up after itself, and works once there is room.
void expect_failed_save(const fs::path& folder, const std::function<void()>& attempt, const std::string& where) {
  std::string error;
  try {
    attempt();
  } catch (const UserError& e) {
    error = e.what();
  }
  EXPECT_NE(error, "") << where;
  EXPECT_EQ(entries(folder), 1u) << where;
  EXPECT_EQ(whole_steps(folder), std::vector<int64_t>{1}) << where;
}

TEST(TrainingState, AFileSizeLimitAtEveryPosition) {
  const Scratch scratch;
  const fs::path folder = scratch / "checkpoints";
  save(folder, 1);
  uint64_t largest = 0;
  for (const auto& entry : fs::directory_iterator(folder / "step-000001")) {
    largest = std::max<uint64_t>(largest, entry.file_size());
  }
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  ::getrlimit(RLIMIT_FSIZE, &unlimited);
  for (uint64_t limit = 0; limit < largest; limit += limit < 64 ? 1 : 131) {
    const rlimit limited{limit, unlimited.rlim_max};
    std::string where = fmt::format("limit {}", limit);
    const auto attempt = [&] {
      ::setrlimit(RLIMIT_FSIZE, &limited);
      try {
        save(folder, 2);
      } catch (...) {
        ::setrlimit(RLIMIT_FSIZE, &unlimited);
        throw;
      }
      ::setrlimit(RLIMIT_FSIZE, &unlimited);
    };
    expect_failed_save(folder, attempt, where);
    if (HasFailure()) break;
  }
  save(folder, 2);
  EXPECT_EQ(whole_steps(folder), (std::vector<int64_t>{2, 1}));
}

/// A file system of its own, so small that it fills up; not mounted where that isn't permitted.
class SmallDisk {
 public:
  explicit SmallDisk(const fs::path& path) : path_(path) {
    fs::create_directory(path);
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=4m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount(path_.c_str());
  }
  bool mounted() const { return mounted_; }
  uint64_t free() const {
    struct statvfs info {};
    ::statvfs(path_.c_str(), &info);
    return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }
  /// Leaves `bytes` free.
  void fill_up_to(uint64_t bytes) const {
    std::ofstream(path_ / "filler", std::ios::binary) << std::string(free() - bytes, 'f');
  }
  void make_room() const { fs::remove(path_ / "filler"); }

 private:
  fs::path path_;
  bool mounted_ = false;
};

TEST(TrainingState, AFullDiskAtEveryPosition) {
  const Scratch scratch;
  const SmallDisk disk(scratch / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs isn't permitted here";
  const fs::path folder = scratch / "disk" / "checkpoints";
  save(folder, 1);
  const uint64_t before = disk.free();
  save(folder, 2);
  const uint64_t needed = before - disk.free();
  fs::remove_all(folder / "step-000002");
  // The disk fills up after the check for room, when the first tensor is asked for.
  for (uint64_t room = 0; room + 4096 < needed; room += 4096) {
    State state(2);
    auto pieces = state.pieces();
    const auto view = pieces[0].view;
    pieces[0].view = [&] {
      disk.fill_up_to(std::min(room, disk.free()));
      return view();
    };
    expect_failed_save(
        folder, [&] { save_checkpoint(Parallel::self(), folder, 2, state.document(), pieces, 1); },
        fmt::format("{} bytes of room", room));
    disk.make_room();
    if (HasFailure()) break;
  }
  // A disk that is full from the start is named with what is needed and what there is.
  disk.fill_up_to(8192);
  const std::string error = error_of([&] { save(folder, 2); });
  EXPECT_CONTAINS(error, "the checkpoint needs 1.0 MiB, but the disk has 0.0 MiB free");
  disk.make_room();
  save(folder, 2);
  EXPECT_EQ(whole_steps(folder), (std::vector<int64_t>{2, 1}));
}

}  // namespace
}  // namespace yoke
