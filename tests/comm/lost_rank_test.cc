// A job that loses a rank ends, says which one and in what, and leaves its records.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <regex>

#include "base/error.h"
#include "comm/recorder.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;

struct Job {
  int code = -1;  // of mpirun
  std::string output;
  double seconds = 0;
};

fs::path records() { return fs::path(testing::TempDir()) / fmt::format("records-{}", getpid()); }

Job run(const std::string& what, int ranks, const std::string& silence, const std::string& timeout,
        const std::string& more = "") {
  fs::remove_all(records());
  const std::string command =
      fmt::format("timeout -s KILL 60 {} --oversubscribe {} -n {} {} '{}' {} {} {} 2>&1", YOKE_MPIRUN, more, ranks,
                  YOKE_LOST_RANK, what, records().string(), silence, timeout);
  const auto begin = std::chrono::steady_clock::now();
  Job job;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) job.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  job.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return job;
}

bool says(const Job& job, const std::string& pattern) { return std::regex_search(job.output, std::regex(pattern)); }

FlightRecord record(int rank) { return read_flight_record(FlightRecorder::path(records(), rank)); }

TEST(LostRank, StoppedIsNamedWithWhatOthersWaitIn) {
  const Job job = run("stop", 3, "3", "100");
  EXPECT_EQ(job.code, 7) << job.output;
  EXPECT_TRUE(says(job, "rank 1 \\(host [^,]+, process [0-9]+\\) is lost: nothing was heard of it for [34] s"))
      << job.output;
  EXPECT_TRUE(
      says(job, "rank [02] \\(.*\\) has waited [0-9]+ s in all_reduce 'gradients' of layer 3, number 6 of group data"))
      << job.output;
  EXPECT_TRUE(says(job, "it last said that it had entered 5 of the 6 collectives that this takes")) << job.output;
}

TEST(LostRank, LivingButStuckIsNamed) {
  const Job job = run("loop", 3, "30", "3");
  EXPECT_EQ(job.code, 7) << job.output;
  EXPECT_TRUE(
      says(job,
           "rank 1 \\(host [^,]+, process [0-9]+\\) is stuck: it lives, but rank [02] \\(.*\\) has waited [34] s in "
           "all_reduce 'gradients' of layer 3, number 6 of group data; it last said that it had entered 5 of the 6"))
      << job.output;
}

TEST(LostRank, AChainOfWaitsLeadsToTheLast) {
  const Job job = run("chain", 3, "30", "3");
  EXPECT_EQ(job.code, 7) << job.output;
  EXPECT_TRUE(
      says(job,
           "rank 2 \\(.*\\) is stuck: it lives, but rank 1 \\(.*\\) has waited [34] s in receive 'output gradients' "
           "of layer 2, number 1 of group pipeline"))
      << job.output;
}

TEST(LostRank, RanksThatWaitForEachOther) {
  const Job job = run("circle", 3, "30", "3");
  EXPECT_EQ(job.code, 7) << job.output;
  EXPECT_TRUE(says(job, "rank [0-2] .*, rank [0-2] .* wait for each other")) << job.output;
}

TEST(LostRank, AComputationThatNeverWaitsEnds) {
  const Job job = run("others compute", 2, "2", "100");
  EXPECT_EQ(job.code, 7) << job.output;
  EXPECT_TRUE(says(job, "rank 1 \\(.*\\) is lost")) << job.output;
}

TEST(LostRank, ASlowRankIsNotLost) {
  const Job job = run("slow", 3, "2", "30");
  EXPECT_EQ(job.code, 0) << job.output;
}

TEST(LostRank, AnErrorOfOneEndsAll) {
  const Job job = run("throw", 3, "30", "100");
  EXPECT_EQ(job.code, 4) << job.output;
  EXPECT_TRUE(says(job, "yoke: weights.safetensors: no such file")) << job.output;
}

// mpirun ends the other ranks by itself; a record says how far each one was.
TEST(LostRank, RecordsOutliveAKilledRank) {
  const Job job = run("many then kill", 3, "15", "100");
  EXPECT_NE(job.code, 0);
  const FlightRecord killed = record(1), other = record(0);
  EXPECT_EQ(killed.rank, 1);
  EXPECT_EQ(killed.ranks, 3);
  EXPECT_TRUE(says(job, fmt::format("{}", killed.host)));
  ASSERT_EQ(killed.entries.size(), FlightRecorder::kEntries);
  const FlightEntry& last = killed.entries.back();
  EXPECT_EQ(last.group, "host");
  EXPECT_EQ(last.what, "barrier");
  EXPECT_EQ(last.state, FlightState::done);
  const FlightEntry& before = killed.entries[killed.entries.size() - 2];
  EXPECT_EQ(before.group, "data");
  EXPECT_EQ(before.kind, CollectiveKind::all_reduce);
  EXPECT_EQ(before.what, "gradients");
  EXPECT_EQ(before.layer, 3);
  EXPECT_EQ(before.sequence, 300U);
  EXPECT_EQ(before.bytes, 4000);
  EXPECT_LE(before.asked, before.entered);
  EXPECT_LE(before.entered, before.done);
  EXPECT_LE(killed.begun, killed.entries.front().asked);
  // The other one is in the collective that the killed one never entered, or ended before it got there.
  EXPECT_GE(other.entries.back().sequence, 1U);
}

// A launcher that leaves the others alone when one dies, as those of some clusters do.
TEST(LostRank, KilledIsNamedWithin30Seconds) {
  const Job job = run("kill", 3, "15", "100", "--enable-recovery");
  EXPECT_TRUE(says(job, "rank 1 \\(.*\\) is lost: .*number 6 of group data")) << job.output;
  EXPECT_LT(job.seconds, 30) << job.output;  // with this option mpirun's own exit code says nothing
}

}  // namespace
}  // namespace yoke
