// Ranks that don't fit each other: each fault is one message, the same on every rank, that names who differs in what.
#include "train/agreement.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <mutex>
#include <set>

#include "base/file.h"
#include "tests/checkpoint/scratch.h"
#include "tests/thread_ranks.h"
#include "train/recipe.h"

namespace yoke {
namespace {

const RankNames kNames({"a", "a", "b", "b"});

std::string resolved(const std::string& overrides, const std::string& name = "r.yaml") {
  return resolved_yaml(parse_recipe("model: {path: m}\ndata: {train: t}\ntrain: {steps: 1}\n" + overrides, name));
}

/// What every rank threw, the same; "" where none threw.
std::string shared_fault(ExitCode code, const std::function<void(const Parallel&)>& work) {
  std::mutex mutex;
  std::vector<std::string> faults;
  test::run_ranks({.data = 4}, [&](const Parallel& parallel) {
    std::string fault;
    try {
      work(parallel);
    } catch (const SharedError& error) {
      EXPECT_EQ(error.code(), code);
      fault = error.what();
    }
    const std::lock_guard lock(mutex);
    faults.push_back(fault);
  });
  EXPECT_EQ(std::set(faults.begin(), faults.end()).size(), 1u);
  return faults[0];
}

std::string refusal(std::vector<RankFacts> facts, ExitCode code = ExitCode::usage) {
  try {
    return "warning: " + compare_facts(facts, kNames);
  } catch (const SharedError& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
}

TEST(RankNames, RunsOfRanksOfAHost) {
  const RankNames names({"a", "a", "a", "a", "b", "b", "b", "c"});
  EXPECT_EQ(names.text({3}), "rank 3 (a)");
  EXPECT_EQ(names.text({0, 1, 2, 3, 4, 5}), "ranks 0 to 3 (a), 4, 5 (b)");
  EXPECT_EQ(names.text({0, 2, 3, 7}), "ranks 0, 2, 3 (a), 7 (c)");
}

TEST(Agreement, VersionsAndRecipes) {
  const std::string recipe = resolved("");
  std::vector<RankFacts> facts(4, {"0.1.0", recipe, 1e9});
  EXPECT_EQ(refusal(facts), "warning: ");
  // Where values came from doesn't count.
  facts[1].recipe = resolved("threads: auto\n", "elsewhere.yaml");
  facts[1].recipe.replace(facts[1].recipe.find("runs/elsewhere"), 14, "runs/r");
  EXPECT_EQ(refusal(facts), "warning: ");
  facts[2].version = facts[3].version = "0.2.0";
  EXPECT_EQ(refusal(facts),
            "The ranks run different versions of yoke: 0.1.0 on ranks 0, 1 (a); 0.2.0 on ranks 2, 3 (b). Install the "
            "same on all hosts.");
  facts[2].version = facts[3].version = "0.1.0";
  facts[1].recipe = resolved("threads: 3\n");
  facts[3].recipe = resolved("log: {every: 7}\noutput: runs/other\n");
  EXPECT_EQ(refusal(facts),
            "The ranks were started with different recipes: log.every is 10 on ranks 0, 1 (a), 2 (b); 7 on rank 3 (b). "
            "output is runs/r on ranks 0, 1 (a), 2 (b); runs/other on rank 3 (b). threads is auto on ranks 0 (a), 2, 3 "
            "(b); 3 on rank 1 (a). Start all of them with the same recipe and options.");
}

TEST(Agreement, Clocks) {
  std::vector<RankFacts> facts(4, {"0.1.0", resolved(""), 1e9});
  facts[2].clock += kClockWarning - 0.5;
  EXPECT_EQ(refusal(facts), "warning: ");
  facts[2].clock = 1e9 + 42;
  EXPECT_EQ(refusal(facts),
            "warning: the clock of rank 2 (b) is up to 42 seconds ahead of that of the other ranks; set it, as by NTP");
  facts[2].clock = 1e9 - 3600;
  EXPECT_EQ(
      refusal(facts),
      "Clocks disagree: the clock of rank 2 (b) is up to 3600 seconds behind that of the other ranks; at most 300 "
      "are legal. Set it, as by NTP.");
  EXPECT_EQ(
      shared_fault(ExitCode::usage, [](const Parallel& p) { agree_on_start(p.host(), kNames, "0.1.0", resolved("")); }),
      "");
}

TEST(Agreement, FaultsOfManyAreSaidOnce) {
  const auto fails = [](const std::vector<std::string>& messages) {
    return shared_fault(ExitCode::bad_file, [&](const Parallel& p) {
      together(p.host(), kNames, [&] {
        const std::string& message = messages[static_cast<size_t>(p.mesh().rank())];
        if (!message.empty()) fail_file("{}", message);
      });
    });
  };
  EXPECT_EQ(fails({"", "", "", ""}), "");
  EXPECT_EQ(fails({"no x", "no x", "no x", "no x"}), "no x");
  EXPECT_EQ(fails({"", "", "no x", "no x"}), "ranks 2, 3 (b): no x");
  EXPECT_EQ(fails({"no x", "no y", "no x", ""}), "ranks 0 (a), 2 (b): no x\nrank 1 (a): no y");
  // What is no UserError isn't swallowed.
  EXPECT_THROW(test::run_ranks({.data = 2},
                               [](const Parallel& p) {
                                 together(p.host(), kNames, [&] {
                                   if (p.first()) throw std::runtime_error("a bug");
                                 });
                               }),
               std::runtime_error);
}

TEST(Agreement, DataAndFirstSamples) {
  const auto data = [](const Parallel& p) {
    agree_on(p.host(), kNames, "the data set", p.mesh().rank() == 3 ? "11" : "22", ExitCode::bad_file, "Copy it.");
  };
  EXPECT_EQ(shared_fault(ExitCode::bad_file, data),
            "Ranks differ in the data set: 22 on ranks 0, 1 (a), 2 (b); 11 on rank 3 (b). Copy it.");
  const auto samples = [](const MeshSizes& sizes, const std::vector<std::string>& hashes) {
    return shared_fault(ExitCode::bad_file, [&](const Parallel& p) {
      const std::string text = agree_on_samples(p.host(), kNames, sizes, hashes[static_cast<size_t>(p.mesh().rank())]);
      EXPECT_TRUE(text.starts_with("first samples: data 0 h0")) << text;
    });
  };
  EXPECT_EQ(samples({.data = 4}, {"h0", "h1", "h2", "h3"}), "");
  EXPECT_EQ(samples({.data = 2, .tensor = 2}, {"h0", "h0", "h1", "h1"}), "");
  EXPECT_EQ(samples({.data = 4}, {"h0", "", "h2", ""}), "");  // the end of the data
  EXPECT_EQ(samples({.data = 4}, {"h0", "h1", "h2", "h1"}),
            "ranks 1 (a), 3 (b) are different data ranks but read the same samples at first (hash h1); a data set that "
            "repeats itself does that: remove what is there twice, or use fewer data ranks.");
  EXPECT_EQ(samples({.data = 2, .tensor = 2}, {"h0", "h0", "h1", "h2"}),
            "ranks 2, 3 (b) share data rank 1 but read different samples at first (hashes h1 and h2); the data must be "
            "the same on all hosts.");
}

TEST(Agreement, FolderThatIsNotShared) {
  const test::Scratch shared, own;
  const auto seen = [&](int blind) {
    return shared_fault(ExitCode::bad_file, [&, blind](const Parallel& p) {
      const int rank = p.mesh().rank();
      agree_on_folder(p.host(), kNames, rank, (rank == blind ? own : shared) / "run", 0.3);
    });
  };
  EXPECT_EQ(seen(-1), "");
  EXPECT_TRUE(std::filesystem::is_empty(shared / "run"));
  const std::string blind = seen(2);
  EXPECT_TRUE(
      blind.ends_with("run is not shared: rank 2 (b) can't see the file that rank 0 (a) wrote there. Checkpoints "
                      "need a folder that all hosts share; set output to one."))
      << blind;
  write_file(shared / "file", "");
  EXPECT_NE(shared_fault(ExitCode::bad_file,
                         [&](const Parallel& p) {
                           agree_on_folder(p.host(), kNames, p.mesh().rank(), shared / "file/run", 0.3);
                         }),
            "");
}

TEST(Agreement, CoresAreShared) {
  cpu_set_t before;
  CPU_ZERO(&before);
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const int cores = CPU_COUNT(&before);
  std::mutex mutex;
  cpu_set_t together_;
  CPU_ZERO(&together_);
  test::run_ranks({.data = 4}, [&](const Parallel& p) {
    // Two hosts with two ranks each, which are threads here.
    const int threads = share_cores(p.host(), kNames, p.mesh().rank(), cores);
    EXPECT_EQ(threads, std::max(1, cores / 2));
    cpu_set_t mine;
    CPU_ZERO(&mine);
    ::sched_getaffinity(0, sizeof mine, &mine);
    EXPECT_EQ(CPU_COUNT(&mine), cores >= 2 ? cores / 2 : cores);
    if (p.mesh().rank() > 1) return;
    const std::lock_guard lock(mutex);
    cpu_set_t both;
    CPU_AND(&both, &together_, &mine);
    if (cores >= 2) {
      EXPECT_EQ(CPU_COUNT(&both), 0);
    }
    CPU_OR(&together_, &together_, &mine);
  });
}

}  // namespace
}  // namespace yoke
