// Who is slow, what that costs and why, from numbers of ranks that are made up.
#include "train/pace.h"

#include <gtest/gtest.h>

namespace yoke::test {
namespace {

const RankNames kNames({"a", "a", "b", "b"});

/// 10 s in 20 steps, of which `busy` were not spent waiting, all of it on the processor.
RankPace pace(double busy) { return {.steps = 20, .seconds = 10, .waited = 10 - busy, .computed = busy}; }

std::vector<SlowRank> judged(const std::vector<RankPace>& paces, const MeshSizes& sizes,
                             std::vector<double> best = {0, 0, 0, 0}) {
  return slow_ranks(paces, best, kNames, sizes);
}

TEST(Pace, WhoIsBusyLongerThanTheMiddleIsSlow) {
  EXPECT_TRUE(judged({pace(9), pace(9), pace(9), pace(9)}, {.data = 4}).empty());
  EXPECT_TRUE(judged({pace(9), pace(9.9), pace(9), pace(9)}, {.data = 4}).empty());  // within a tenth
  const auto slow = judged({pace(7), pace(6), pace(10), pace(7)}, {.data = 2, .tensor = 2});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 2);
  EXPECT_EQ(slow[0].host, "b");
  EXPECT_DOUBLE_EQ(slow[0].lost, 3);
}

TEST(Pace, StagesOfAPipelineAreNotComparedWithEachOther) {
  // Ranks 0 and 1 are the first stage, 2 and 3 the last, which has more to do.
  EXPECT_TRUE(judged({pace(4), pace(4), pace(9), pace(9)}, {.data = 2, .pipeline = 2}).empty());
  const auto slow = judged({pace(4), pace(6), pace(9), pace(9)}, {.data = 2, .pipeline = 2});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 1);
  EXPECT_DOUBLE_EQ(slow[0].lost, 2);
}

TEST(Pace, ARankWithoutItsLikeIsComparedWithItself) {
  const std::vector<RankPace> paces{pace(4), pace(5), pace(8), pace(5)};
  EXPECT_TRUE(judged(paces, {.pipeline = 4}).empty());  // nothing is known of it yet
  const auto slow = judged(paces, {.pipeline = 4}, {0.2, 0.25, 0.25, 0.25});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 2);
  EXPECT_DOUBLE_EQ(slow[0].lost, 3);
}

TEST(Pace, TheCauseIsWhatExplainsTheLoss) {
  const auto cause = [&](const RankPace& slow) {
    const auto found = judged({pace(6), slow, pace(6), pace(6)}, {.data = 4});
    return found.size() == 1 && found[0].rank == 1 ? found[0].cause : "not found";
  };
  RankPace slow = pace(10);
  EXPECT_NE(cause(slow).find("its cores computed longer"), std::string::npos) << cause(slow);
  slow.computed = 6;
  EXPECT_NE(cause(slow).find("stood still for 4.0 s"), std::string::npos) << cause(slow);
  slow.faults = 1000;
  EXPECT_NE(cause(slow).find("1000 pages"), std::string::npos) << cause(slow);
  slow.queued = 3.5;
  EXPECT_NE(cause(slow).find("waited 3.5 s for a core"), std::string::npos) << cause(slow);
  slow.reading = 3;
  EXPECT_NE(cause(slow).find("3.0 s longer to read samples"), std::string::npos) << cause(slow);
  slow.throttled = 2.5;
  EXPECT_NE(cause(slow).find("quota of its cgroup held it back for 2.5 s"), std::string::npos) << cause(slow);
}

}  // namespace
}  // namespace yoke::test
