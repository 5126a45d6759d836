// One log of many ranks: what reaches it, from whom, and how often.
#include "train/rank_log.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "tests/train/support.h"
#include "train/agreement.h"

namespace yoke::test {
namespace {

const RankNames kNames({"a", "a", "b", "b"});

/// The ranks of a job, one after the other in one process: notes what they give, and gives rank 0 all of it.
class Gathered : public HostGroup {
 public:
  std::vector<std::string> all_gather(const std::string& text) override {
    texts[rank] = text;
    return {texts.begin(), texts.end()};
  }
  void all_reduce(std::span<double>, Reduction) override {}
  std::string broadcast(const std::string& text) override { return text; }
  void barrier() override {}

  size_t rank = 0;
  std::array<std::string, 4> texts;
};

/// What rank `rank` writes by itself while it says things.
std::string said_by(int rank, Gathered& host, const std::function<void()>& says, bool shares = true) {
  const LogCapture capture;
  spdlog::default_logger()->set_pattern("%l %v");
  {
    RankLog log(rank, kNames.text({rank}));
    if (rank == 3) log.set_tag("rank 3 (b, data 3)");
    says();
    host.rank = static_cast<size_t>(rank);
    if (shares) log.share(host, kNames);
  }
  return capture.text();
}

TEST(RankLog, OnlyTheFirstRankSpeaksAndNothingIsSaidTwice) {
  Gathered host;
  const auto common = [] {
    log::info("ordinary");
    log::warn("everybody's");
  };
  EXPECT_EQ(said_by(1, host, [&] { common(), log::warn("of two"); }), "");
  EXPECT_EQ(said_by(2, host, [&] { common(), log::warn("of two"), log::warn("of two"); }), "");
  EXPECT_EQ(said_by(3, host, [&] { common(), log::error("one's\nown"); }), "");
  EXPECT_EQ(said_by(0, host, common),
            "info ordinary\nwarning everybody's\nwarning ranks 1 (a), 2 (b): of two\nerror rank 3 (b, data 3): "
            "one's\nown\n");
}

TEST(RankLog, WhatWasNotSharedIsWrittenWithItsRank) {
  Gathered host;
  const auto says = [] { log::info("ordinary"), log::error("the end"); };
  EXPECT_EQ(said_by(3, host, says, false), "error rank 3 (b, data 3): the end\n");
  EXPECT_EQ(said_by(0, host, says, false), "info ordinary\nerror the end\n");
  // Who ends the process flushes, and writes nothing again.
  EXPECT_EQ(said_by(
                2, host, [&] { says(), spdlog::default_logger()->flush(); }, false),
            "error rank 2 (b): the end\n");
}

}  // namespace
}  // namespace yoke::test
