// The table of what ranks did last.
#include "launch/records.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "comm/recorder.h"

namespace yoke::test {
namespace {

namespace fs = std::filesystem;

class Records : public testing::Test {
 protected:
  Records() : folder_(fs::path(testing::TempDir()) / ("records-" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
  }
  ~Records() override { fs::remove_all(folder_); }

  static int count(const std::string& text, const std::string& part) {
    int n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  }

  fs::path folder_;
  std::vector<float> values_ = std::vector<float>(6);
  Collective collective_{
      .kind = CollectiveKind::all_reduce, .input = {values_.data(), DType::f32, {6}}, .what = "gradients", .layer = 3};
};

TEST_F(Records, NameWhoIsBehindAndInWhat) {
  for (int rank = 0; rank < 3; ++rank) {
    FlightRecorder recorder(folder_ / "ranks", rank, 3);
    for (uint64_t sequence = 1; sequence <= 5; ++sequence) {
      const uint64_t number = recorder.asked("data", sequence, collective_);
      if (rank == 1 && sequence == 5) break;  // asked, not entered
      recorder.entered(number);
      if (sequence < 5) recorder.done(number);
    }
  }
  const std::string text = records_text(folder_);
  EXPECT_EQ(count(text, "  in all_reduce 'gradients' of layer 3, number 5 of group data"), 2) << text;
  EXPECT_EQ(count(text, "  before all_reduce 'gradients' of layer 3, number 5 of group data"), 1) << text;
  EXPECT_NE(text.find("behind in group data: rank 1 ("), std::string::npos) << text;
  EXPECT_NE(text.find(") 4 of 5\n"), std::string::npos) << text;
  EXPECT_EQ(count(text, "  24  "), 3) << text;  // bytes
  EXPECT_EQ(count(records_text(folder_ / "ranks", 2), "after all_reduce"), 3);
}

TEST_F(Records, OldOnesAndDamagedOnesDontMislead) {
  { FlightRecorder older(folder_ / "ranks", 7, 8); }
  FlightRecorder recorder(folder_ / "ranks", 0, 2);
  std::ofstream(FlightRecorder::path(folder_ / "ranks", 1)) << "yoke";
  const std::string text = records_text(folder_);
  EXPECT_NE(text.find("none yet"), std::string::npos) << text;
  EXPECT_NE(text.find("rank-00001.flight"), std::string::npos) << text;
  EXPECT_EQ(count(text, "none yet"), 1) << text;
}

TEST_F(Records, AFolderWithoutThemIsAnError) {
  try {
    records_text(folder_);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_file);
  }
}

}  // namespace
}  // namespace yoke::test
