// What memory and cores a process may use, on machines laid out as files (case 23: a cgroup limit is respected up
// front).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "device/deprivation.h"
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

// A group that has read a large data set is not full.
TEST_F(MachineFiles, FilePagesThatCanBeDroppedAreFree) {
  write("proc/self/cgroup", "0::/jobs/train\n");
  write("sys/fs/cgroup/jobs/train/memory.max", "4000000000\n");
  write("sys/fs/cgroup/jobs/train/memory.current", "3000000000\n");
  write("sys/fs/cgroup/jobs/train/memory.stat",
        "anon 500000000\nfile 2500000000\ninactive_anon 7\nactive_file 100000000\ninactive_file 2400000000\n");
  EXPECT_EQ(available(), 3400000000u);
  // Each group by its own figures.
  write("sys/fs/cgroup/jobs/memory.max", "5000000000\n");
  write("sys/fs/cgroup/jobs/memory.current", "4500000000\n");
  EXPECT_EQ(available(), 500000000u);
  write("sys/fs/cgroup/jobs/memory.stat", "inactive_file 2500000000\n");
  EXPECT_EQ(available(), 3000000000u);
}

TEST_F(MachineFiles, FilePagesUnderVersionOne) {
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "2000\n");
  // Without `total_` it is the group's own pages; usage has those of the groups below it too.
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 100\ntotal_inactive_file 1500\n");
  EXPECT_EQ(available(), 4500u);
}

TEST_F(MachineFiles, FilePagesBeyondWhatIsUsedFreeNoMoreThanThat) {
  write("sys/fs/cgroup/memory.max", "4000\n");
  write("sys/fs/cgroup/memory.current", "1000\n");
  write("sys/fs/cgroup/memory.stat", "inactive_file 1001\n");
  EXPECT_EQ(available(), 4000u);
  write("sys/fs/cgroup/memory.stat", "inactive_file 18446744073709551615\n");
  EXPECT_EQ(available(), 4000u);
}

TEST_F(MachineFiles, WithoutAFigureForFilePagesAllThatIsUsedCounts) {
  write("sys/fs/cgroup/memory.max", "4000\n");
  write("sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(available(), 3000u);
  for (const char* stat : {"", "\n", "inactive_file\n", "inactive_file many\n", "inactive_file: 500\n",
                           "inactive_file -500\n", "total_inactive_file 500\n", "500 inactive_file\n"}) {
    write("sys/fs/cgroup/memory.stat", stat);
    EXPECT_EQ(available(), 3000u) << stat;
  }
}

TEST_F(MachineFiles, LimitAboveTheMachine) {
  write("proc/self/cgroup", "0::/x\n");
  write("sys/fs/cgroup/x/memory.max", "999000000000\n");
  EXPECT_EQ(available(), kFree);
}

TEST_F(MachineFiles, WhatKeptAProcessFromItsCores) {
  EXPECT_EQ(deprivation(root_.string()).queued, 0);
  EXPECT_EQ(deprivation(root_.string()).throttled, 0);
  write("proc/self/task/7/schedstat", "5000000000 1500000000 20\n");
  write("proc/self/task/8/schedstat", "1 500000000 3\n");
  write("proc/self/task/9/stat", "");
  write("proc/self/cgroup", "0::/jobs/train\n");
  write("sys/fs/cgroup/jobs/cpu.stat", "usage_usec 99\nnr_throttled 3\nthrottled_usec 2500000\n");
  write("sys/fs/cgroup/jobs/train/cpu.stat", "throttled_usec 0\n");
  EXPECT_DOUBLE_EQ(deprivation(root_.string()).queued, 2);
  EXPECT_DOUBLE_EQ(deprivation(root_.string()).throttled, 2.5);
}

}  // namespace
}  // namespace yoke
