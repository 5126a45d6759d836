// Flight records: the ring, and files that are damaged.
#include "comm/recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "base/error.h"
#include "base/file.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;

fs::path folder() { return fs::path(testing::TempDir()) / fmt::format("flight-{}", getpid()); }

Collective collective(int64_t layer) {
  return {.kind = CollectiveKind::reduce_scatter,
          .input = {nullptr, DType::bf16, {6}},
          .what = "gradients",
          .layer = layer};
}

std::string content(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(FlightRecorder, KeepsTheLast256) {
  FlightRecorder recorder(folder(), 7, 12);
  const fs::path path = FlightRecorder::path(folder(), 7);
  EXPECT_TRUE(read_flight_record(path).entries.empty());
  std::vector<uint64_t> numbers;
  for (uint64_t i = 1; i <= 1000; ++i) {
    numbers.push_back(recorder.asked("shard", i, collective(static_cast<int64_t>(i))));
    if (i > 2) recorder.entered(numbers[i - 3]);
    if (i > 4) recorder.done(numbers[i - 5]);
    if (i > 500) recorder.done(numbers[i - 500]);  // no longer there: changes nothing
    const FlightRecord record = read_flight_record(path);
    ASSERT_EQ(record.entries.size(), std::min<uint64_t>(i, 256));
    for (size_t e = 0; e < record.entries.size(); ++e) {
      ASSERT_EQ(record.entries[e].sequence, i - record.entries.size() + 1 + e);
    }
  }
  const FlightRecord record = read_flight_record(path);
  EXPECT_EQ(record.rank, 7);
  EXPECT_EQ(record.ranks, 12);
  EXPECT_EQ(record.process, getpid());
  const FlightEntry& last = record.entries.back();
  EXPECT_EQ(last.group, "shard");
  EXPECT_EQ(last.kind, CollectiveKind::reduce_scatter);
  EXPECT_EQ(last.what, "gradients");
  EXPECT_EQ(last.layer, 1000);
  EXPECT_EQ(last.bytes, 12);
  EXPECT_EQ(last.state, FlightState::asked);
  EXPECT_EQ(record.entries[252].state, FlightState::entered);
  EXPECT_EQ(record.entries[251].state, FlightState::done);
}

TEST(FlightRecorder, DamagedFilesAreErrors) {
  const fs::path path = FlightRecorder::path(folder(), 2);
  {
    FlightRecorder recorder(folder(), 2, 3);
    for (uint64_t i = 1; i <= 300; ++i) recorder.done(recorder.asked("data", i, collective(1)));
  }
  const std::string good = content(path);
  EXPECT_EQ(read_flight_record(path).entries.size(), 256U);
  const auto refused = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      read_flight_record(path);
    } catch (const UserError& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_file);
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos);
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused(good.substr(0, good.size() - 1)));
  EXPECT_TRUE(refused(good + "x"));
  EXPECT_TRUE(refused("Y" + good.substr(1)));
  EXPECT_TRUE(refused(std::string(good.size(), '\xff')));
  fs::remove(path);
  EXPECT_THROW(read_flight_record(path), UserError);
  // Anything else is read or refused, never more.
  std::mt19937 random(1);
  int refusals = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 1 + i % 50; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    refusals += refused(bytes);
  }
  EXPECT_GT(refusals, 300);
}

TEST(FlightRecorder, AFolderThatIsAFileIsAnError) {
  const fs::path file = folder() / "file";
  fs::create_directories(folder());
  write_file(file, "x");
  EXPECT_THROW(FlightRecorder(file, 0, 1), UserError);
}

}  // namespace
}  // namespace yoke
