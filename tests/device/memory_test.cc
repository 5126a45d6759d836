// What memory a process may use, on machines laid out as files (case 23: a cgroup limit is respected up front).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "device/device.h"

namespace yoke {
namespace {

class MachineFiles : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) / ("machine-" + std::to_string(::getpid()));
    write("proc/meminfo", "MemTotal: 32000000 kB\nMemFree: 100 kB\nMemAvailable: 16000000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << content;
  }
  size_t available() const { return available_memory(root_.string()); }

  static constexpr size_t kFree = size_t{16000000} * 1024;
  std::filesystem::path root_;
};

TEST_F(MachineFiles, WithoutLimitsWhatTheKernelCallsAvailable) { EXPECT_EQ(available(), kFree); }

TEST_F(MachineFiles, NearestCgroupLimitLessItsUse) {
  write("proc/self/cgroup", "0::/jobs/train\n");
  write("sys/fs/cgroup/jobs/train/memory.max", "4000000000\n");
  write("sys/fs/cgroup/jobs/train/memory.current", "1000000000\n");
  EXPECT_EQ(available(), 3000000000u);
}

TEST_F(MachineFiles, LimitOfAGroupAbove) {
  write("proc/self/cgroup", "0::/jobs/train\n");
  write("sys/fs/cgroup/jobs/train/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/memory.max", "2000000000\n");
  write("sys/fs/cgroup/jobs/memory.current", "2500000000\n");
  EXPECT_EQ(available(), 0u);
}

TEST_F(MachineFiles, LimitInsideAContainerIsAtTheRoot) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "1000000000\n");
  write("sys/fs/cgroup/memory.current", "1\n");
  EXPECT_EQ(available(), 999999999u);
}

TEST_F(MachineFiles, VersionOne) {
  write("proc/self/cgroup", "4:memory:/docker/x\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "2000\n");
  EXPECT_EQ(available(), 3000u);
}

TEST_F(MachineFiles, VersionOneWithoutLimit) {
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available(), kFree);
}

TEST_F(MachineFiles, LimitAboveTheMachine) {
  write("proc/self/cgroup", "0::/x\n");
  write("sys/fs/cgroup/x/memory.max", "999000000000\n");
  EXPECT_EQ(available(), kFree);
}

}  // namespace
}  // namespace yoke
