// Jobs that yoke starts through mpirun: the real one, with shell commands for ranks.
#include "launch/mpirun.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;

class Mpirun : public ::testing::Test {
 protected:
  MpirunJob job(const std::string& script, int ranks = 3) {
    return {.mpirun = find_mpirun(ranks),
            .program = {"/bin/sh", "-c", script, folder_.path().string()},
            .ranks = ranks,
            .as_root = ::geteuid() == 0};
  }
  /// What the job said on standard error goes to said_.
  JobEnding run(const MpirunJob& job, double patience = 10) {
    ::testing::internal::CaptureStderr();
    const JobEnding ending = run_job(job, patience);
    said_ = ::testing::internal::GetCapturedStderr();
    return ending;
  }
  int lines(const std::string& name) {
    const std::string text = read_file(folder_ / name);
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }
  /// Does something as soon as all ranks have written a line.
  template <class Action>
  std::thread when_started(int ranks, Action action) {
    return std::thread([this, ranks, action] {
      sigset_t all;  // signals to the process are for the thread that runs the job
      sigfillset(&all);
      ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
      while (!fs::exists(folder_ / "started") || lines("started") < ranks) ::usleep(20000);
      action();
    });
  }

  test::Scratch folder_;
  std::string said_;
};

TEST_F(Mpirun, RanksRunAndTheirCodeComesBack) {
  const JobEnding good = run(job("echo $OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE >> $0/ranks; echo hello >&2"));
  EXPECT_EQ(good.code, 0);
  EXPECT_EQ(lines("ranks"), 3);
  EXPECT_EQ(said_, "hello\nhello\nhello\n");
  const JobEnding bad = run(job("[ $OMPI_COMM_WORLD_RANK = 0 ] && { echo 'yoke: no' >&2; exit 4; }; sleep 30"));
  EXPECT_EQ(bad.code, 4);
  EXPECT_TRUE(bad.fault_said);
  EXPECT_FALSE(bad.killed);
  EXPECT_EQ(said_, "yoke: no\n");  // and nothing of mpirun's own words
}

TEST_F(Mpirun, ASignalThatKillsARankIsNamed) {
  const JobEnding ending = run(job("[ $OMPI_COMM_WORLD_RANK = 2 ] && kill -9 $$; sleep 30"));
  ASSERT_TRUE(ending.killed);
  EXPECT_EQ(ending.killed->rank, 2);
  EXPECT_EQ(ending.killed->signal, "9 (Killed)");
  char host[256];
  ASSERT_EQ(::gethostname(host, sizeof host), 0);
  EXPECT_EQ(ending.killed->host, host);
  EXPECT_EQ(said_, "");
}

TEST_F(Mpirun, AnInterruptReachesEveryRankOnceAsAWish) {
  // Exit codes of a clean stop; the trap runs when sleep, which gets the signal too, has ended.
  const std::string script =
      "trap 'echo >> $0/asked; wait_for() { while [ $(wc -l < $0/asked) -lt 3 ]; do sleep 0.05; done; }; wait_for; "
      "exit "
      "6' USR1; echo >> $0/started; while true; do sleep 0.05; done";
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    fs::remove(folder_ / "asked");
    fs::remove(folder_ / "started");
    std::thread sender = when_started(3, [signal] { ::kill(::getpid(), signal); });
    const JobEnding ending = run(job(script));
    sender.join();
    EXPECT_EQ(ending.code, 6) << said_;
    EXPECT_EQ(ending.interrupt, signal);
    EXPECT_EQ(lines("asked"), 3);
  }
}

TEST_F(Mpirun, ASecondInterruptEndsTheJob) {
  std::thread sender = when_started(3, [] {
    ::kill(::getpid(), SIGINT);
    ::usleep(300000);
    ::kill(::getpid(), SIGINT);
  });
  const JobEnding ending = run(job("trap '' USR1; echo >> $0/started; while true; do sleep 0.05; done"));
  sender.join();
  EXPECT_NE(ending.code, 0);
  EXPECT_EQ(ending.interrupt, SIGINT);
}

TEST_F(Mpirun, AJobWhoseRanksSaidThatTheyEndIsNotWaitedForWithoutEnd) {
  MpirunJob stuck = job("");
  write_file(folder_ / "mpirun", "#!/bin/sh\necho 'yoke: rank 1 is lost' >&2\nexec sleep 60\n");
  fs::permissions(folder_ / "mpirun", fs::perms::owner_all);
  stuck.mpirun = (folder_ / "mpirun").string();
  const JobEnding ending = run(stuck, 0.5);
  EXPECT_TRUE(ending.abandoned);
  EXPECT_TRUE(ending.fault_said);
}

TEST_F(Mpirun, NothingOfAnEarlierLauncherIsLeft) {
  for (const auto& [name, value] : {std::pair("OMPI_COMM_WORLD_RANK", "5"), std::pair("PMIX_RANK", "5"),
                                    std::pair("SLURM_JOB_ID", "17"), std::pair("SLURM_NTASKS", "9")}) {
    ::setenv(name, value, 1);
  }
  ::setenv("OMPI_MCA_btl_base_warn_component_unused", "0", 1);
  const JobEnding ending = run(
      job("echo $OMPI_COMM_WORLD_RANK $PMIX_RANK $OMPI_MCA_btl_base_warn_component_unused $SLURM_JOB_ID >> $0/seen"));
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_JOB_ID", "SLURM_NTASKS",
                           "OMPI_MCA_btl_base_warn_component_unused"}) {
    ::unsetenv(name);
  }
  EXPECT_EQ(ending.code, 0) << said_;
  std::istringstream seen(read_file(folder_ / "seen"));
  std::vector<std::string> all;
  for (std::string line; std::getline(seen, line);) all.push_back(line);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<std::string>{"0 0 0", "1 1 0", "2 2 0"}));
}

TEST_F(Mpirun, MissingOrForeignIsSaid) {
  const std::string before = std::getenv("PATH");
  const auto refusal = [] {
    try {
      find_mpirun(4);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return std::string(error.what());
    }
    return std::string();
  };
  ::setenv("PATH", folder_.path().c_str(), 1);
  EXPECT_NE(refusal().find("asks for 4 ranks"), std::string::npos);
  write_file(folder_ / "mpirun", "#!/bin/sh\necho HYDRA build details\n");
  fs::permissions(folder_ / "mpirun", fs::perms::owner_all);
  EXPECT_NE(refusal().find((folder_ / "mpirun").string() + " is not Open MPI's"), std::string::npos);
  ::setenv("PATH", before.c_str(), 1);
}

TEST_F(Mpirun, CommandLines) {
  const MpirunJob here{.mpirun = "/m", .program = {"/y", "train"}, .ranks = 4, .as_root = true};
  EXPECT_EQ(mpirun_command(here), (std::vector<std::string>{"/m", "-n", "4", "--allow-run-as-root", "--oversubscribe",
                                                            "--bind-to", "none", "/y", "train"}));
  const std::vector<std::string> there =
      mpirun_command({.mpirun = "/m", .program = {"/y"}, .ranks = 3, .hosts = {{"a", 2}, {"b", 1}}});
  const auto at = std::find(there.begin(), there.end(), "--host");
  ASSERT_NE(at, there.end());
  EXPECT_EQ(*(at + 1), "a:2,b:1");
  EXPECT_EQ(std::count(there.begin(), there.end(), "--allow-run-as-root"), 0);
}

}  // namespace
}  // namespace yoke
