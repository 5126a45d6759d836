// Who is to blame, from what ranks say of themselves; time is made up.
#include "comm/watch.h"

#include <gtest/gtest.h>

#include <cstring>

namespace yoke {
namespace {

Beat entered(Group group, uint64_t collectives, uint64_t mesh = 1) {
  Beat beat;
  beat.groups[static_cast<size_t>(group)] = {mesh, collectives};
  return beat;
}

Beat waiting(Beat beat, size_t group, uint64_t order, double seconds) {
  beat.wait = {.group = static_cast<int32_t>(group),
               .kind = static_cast<int32_t>(CollectiveKind::all_gather),
               .order = order,
               .sequence = order,
               .layer = 4,
               .seconds = seconds};
  std::strcpy(beat.wait.what, "weights");
  return beat;
}

/// Rank 0 of 4 on a mesh of 2 data x 2 tensor: tensor groups {0, 1} and {2, 3}, data groups {0, 2} and {1, 3}.
struct Four {
  Watch watch{{.silence = 10, .timeout = 60}, 0, {"a", "a", "b", "b"}, {11, 12, 13, 14}, 0};
  Four() { watch.set_mesh({.data = 2, .tensor = 2}, 1); }
};

TEST(Watch, SilenceIsCountedFromTheLastWord) {
  Four f;
  for (int second = 1; second <= 30; ++second) {
    for (int r : {1, 3}) f.watch.heard(r, {}, second);
    if (second <= 5) f.watch.heard(2, {}, second);
    const auto verdict = f.watch.verdict({}, second);
    if (second <= 15) {
      ASSERT_FALSE(verdict) << second << *verdict;
    } else {
      ASSERT_TRUE(verdict);
      EXPECT_NE(verdict->find("rank 2 (host b, process 13) is lost: nothing was heard of it"), std::string::npos)
          << *verdict;
    }
  }
}

TEST(Watch, WorkThatMayTakeAnyTimeIsNotStuck) {
  const auto verdict_at = [](Four& f, int second, bool patient, double seconds) {
    for (int r : {1, 2, 3}) f.watch.heard(r, {}, second);
    return f.watch.verdict(waiting(entered(Group::data, 5), static_cast<size_t>(Group::data), 6, seconds), second,
                           patient);
  };
  Four f;
  for (int s = 1; s <= 1000; ++s) ASSERT_FALSE(verdict_at(f, s, true, s));
  // What was heard last may be from before the work ended; afterwards patience is over.
  for (int s = 1001; s <= 1004; ++s) EXPECT_FALSE(verdict_at(f, s, false, s));
  for (int s = 1005; s <= 1010; ++s) EXPECT_FALSE(verdict_at(f, s, false, s - 1004));
  EXPECT_TRUE(verdict_at(f, 1070, false, 66));
  // Silence is noticed all the same.
  Four g;
  std::optional<std::string> verdict;
  for (int s = 1; s <= 20; ++s) verdict = g.watch.verdict({}, s, true);
  ASSERT_TRUE(verdict);
  EXPECT_NE(verdict->find("lost"), std::string::npos) << *verdict;
}

TEST(Watch, WhoStoodStillItselfBlamesNobody) {
  Four f;
  for (int r : {1, 2, 3}) f.watch.heard(r, {}, 1);
  EXPECT_FALSE(f.watch.verdict({}, 1));
  EXPECT_FALSE(f.watch.verdict({}, 500));  // stopped and continued
  for (int s = 501; s < 510; ++s) EXPECT_FALSE(f.watch.verdict({}, s));
  std::optional<std::string> verdict;
  for (int s = 510; s < 513; ++s) verdict = f.watch.verdict({}, s);
  ASSERT_TRUE(verdict);
  EXPECT_NE(verdict->find("are lost"), std::string::npos) << *verdict;
}

TEST(Watch, TheOneThatHasNotEnteredIsStuck) {
  Four f;
  const auto tensor = static_cast<size_t>(Group::tensor);
  // 2 waits for 3; 3 lives and has entered one less. 0 and 1 compute.
  f.watch.heard(2, waiting(entered(Group::tensor, 8), tensor, 8, 61), 1);
  f.watch.heard(3, entered(Group::tensor, 7), 1);
  const auto verdict = f.watch.verdict({}, 1);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(
      *verdict,
      "rank 3 (host b, process 14) is stuck: it lives, but rank 2 (host b, process 13) has waited 61 s in all_gather "
      "'weights' of layer 4, number 8 of group tensor; it last said that it had entered 7 of the 8 collectives that "
      "this takes");
}

TEST(Watch, WhoWaitsForAnotherIsNotToBlame) {
  Four f;
  const auto tensor = static_cast<size_t>(Group::tensor), data = static_cast<size_t>(Group::data);
  Beat three = waiting(entered(Group::tensor, 7), data, 5, 62);  // for 1, which computes
  three.groups[data] = {1, 5};
  f.watch.heard(3, three, 1);
  f.watch.heard(2, waiting(entered(Group::tensor, 8), tensor, 8, 61), 1);
  f.watch.heard(1, entered(Group::data, 4), 1);
  const auto verdict = f.watch.verdict({}, 1);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->find("rank 1 (host a, process 12) is stuck"), 0U) << *verdict;
}

TEST(Watch, ACollectiveThatAllHaveEnteredBlamesNobody) {
  Four f;
  const auto tensor = static_cast<size_t>(Group::tensor);
  f.watch.heard(2, waiting(entered(Group::tensor, 8), tensor, 8, 61), 1);
  f.watch.heard(3, waiting(entered(Group::tensor, 8), tensor, 8, 61), 1);
  const auto verdict = f.watch.verdict({}, 1);
  ASSERT_TRUE(verdict);
  EXPECT_NE(verdict->find("which all ranks have entered"), std::string::npos) << *verdict;
}

TEST(Watch, CountsOfAnEarlierMeshAreNone) {
  Four f;
  const auto tensor = static_cast<size_t>(Group::tensor);
  f.watch.heard(2, waiting(entered(Group::tensor, 1), tensor, 1, 61), 1);
  f.watch.heard(3, entered(Group::tensor, 900, 0), 1);
  const auto verdict = f.watch.verdict({}, 1);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->find("rank 3"), 0U) << *verdict;
}

TEST(Watch, PatienceLastsItsTime) {
  Four f;
  const auto tensor = static_cast<size_t>(Group::tensor);
  f.watch.heard(2, waiting(entered(Group::tensor, 8), tensor, 8, 59), 1);
  EXPECT_FALSE(f.watch.verdict({}, 1));
}

}  // namespace
}  // namespace yoke
