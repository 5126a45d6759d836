// yoke train as it is typed, where the recipe asks for several ranks: it starts them, passes signals on, and says what
// became of them.
#include "launch/start.h"

#include "checkpoint/training_state.h"
#include "tests/train/run_support.h"

namespace yoke::test {
namespace {

class StartedRanks : public RunTest {
 protected:
  std::vector<std::string> words(std::vector<std::string> more) const {
    more.insert(more.begin(), {"train", at("recipe.yaml"), "--threads", "1", "--evaluate.every", "0"});
    return more;
  }
  static int count(const std::string& text, const std::string& part) {
    int n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  }
};

TEST_F(StartedRanks, TrainAsOneRankDoes) {
  YokeProcess one(words({"--output", at("one")}));
  ASSERT_EQ(one.wait(), 0) << one.text();
  YokeProcess two(words({"--output", at("two"), "--parallel.data", "2"}));
  ASSERT_EQ(two.wait(), 0) << two.text();
  EXPECT_CONTAINS(two.text(), "2 ranks");
  EXPECT_EQ(count(two.text(), "first samples: data 0 "), 1);
  const auto want = metrics_of(at("one")), got = metrics_of(at("two"));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i + 1 < want.size(); ++i) {
    EXPECT_NEAR(got[i].at("loss").get<double>(), want[i].at("loss").get<double>(), 1e-4);
    EXPECT_EQ(got[i].at("tokens"), want[i].at("tokens"));
    EXPECT_EQ(got[i].at("lr"), want[i].at("lr"));
  }
  EXPECT_NEAR(got.back().at("validation_loss").get<double>(), want.back().at("validation_loss").get<double>(), 1e-4);
}

TEST_F(StartedRanks, SaveWhenInterruptedAndGoOn) {
  YokeProcess first(words({"--parallel.data", "2", "--checkpoint.every", "0", "--train.steps", "2000"}));
  ASSERT_TRUE(first.read_until("step 5/")) << first.text();
  first.send(SIGINT);
  EXPECT_EQ(first.wait(), 6) << first.text();
  EXPECT_EQ(count(first.text(), "interrupted after step"), 1);
  const auto saved = find_checkpoints(folder_ / "run/checkpoints", CheckDepth::hashes);
  ASSERT_EQ(saved.size(), 1u);
  EXPECT_EQ(saved[0].fault, "");
  YokeProcess second(
      words({"--parallel.data", "2", "--resume", "auto", "--train.steps", std::to_string(saved[0].step + 2)}));
  EXPECT_EQ(second.wait(), 0) << second.text();
  EXPECT_CONTAINS(second.text(), "resumed from");
}

TEST_F(StartedRanks, AKilledRankIsNamed) {
  for (const int rank : {0, 1}) {
    YokeProcess run(words({"--parallel.data", "2", "--train.steps", "2000", "--resume", "auto"}));
    ASSERT_TRUE(run.read_until("first samples")) << run.text();
    ASSERT_TRUE(run.read_until("tokens/s", 4)) << run.text();
    ::kill(process_of_rank(at("recipe.yaml"), rank), SIGKILL);
    EXPECT_EQ(run.wait(), 7) << run.text();
    EXPECT_CONTAINS(run.text(), fmt::format("yoke: rank {} (", rank));
    EXPECT_CONTAINS(run.text(), "signal 9 (Killed) ended it");
    EXPECT_CONTAINS(run.text(), "of group ");
    EXPECT_CONTAINS(run.text(), "The newest whole checkpoint is of step ");
    EXPECT_EQ(count(run.text(), "yoke: "), 1) << run.text();
    EXPECT_EQ(count(run.text(), "mpirun"), 0) << run.text();
  }
}

TEST_F(StartedRanks, WhatIsWrongIsSaidOnce) {
  const auto refused = [&](const std::vector<std::string>& more, int code, const std::string& part) {
    YokeProcess run(words(more));
    EXPECT_EQ(run.wait(), code) << run.text();
    EXPECT_EQ(count(run.text(), "yoke: "), 1) << run.text();
    EXPECT_CONTAINS(run.text(), part);
  };
  refused({"--parallel.data", "2", "--train.steps", "no"}, 2, "train.steps");  // before anything is started
  refused({"--parallel.data", "2", "--data.train", at("none.txt")}, 4, "none.txt");
  refused({"--parallel.data", "3"}, 2, "train.global_batch is 4");
  refused({"--parallel.data", "2", "--resume", at("none")}, 4, "none");
  refused({"--parallel.data", "2", "--memory.consume_gradients", "true", "--train.micro_batch", "4"}, 2,
          "train.global_batch");
  refused({"--parallel.data", "2", "--memory.limit", "1MiB"}, 3, "memory.limit");
  refused({"--parallel.data", "2", "--hosts", "a:3"}, 2, "start 2");
  refused({"--parallel.data", "2", "--hosts", "a:2", "--hostfile", "x"}, 2, "--hostfile");
  refused({"--ranks", "2"}, 2, "without telling its rank");
}

TEST_F(StartedRanks, ArgumentsOfRanksMeanTheSame) {
  const TrainOptions options{.recipe = "-r.yaml",
                             .overrides = {{"data.train", "-a,b c"}, {"train.steps", "3"}},
                             .resume = "auto",
                             .dry_run = true};
  EXPECT_EQ(rank_arguments(options, 4, "/dev/pts/3"),
            (std::vector<std::string>{"train", "--resume=auto", "--ranks=4", "--terminal=/dev/pts/3", "--dry-run",
                                      "--data.train=-a,b c", "--train.steps=3", "--", "-r.yaml"}));
}

}  // namespace
}  // namespace yoke::test
