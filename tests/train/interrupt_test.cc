// Real signals to real processes: the first sets the flag, the second ends the process.
#include "train/interrupt.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace yoke {
namespace {

TEST(Interrupt, TheFirstSignalOnlySetsTheFlag) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const InterruptGuard guard;
    EXPECT_FALSE(guard.requested());
    ::raise(signal);
    EXPECT_TRUE(guard.requested());
    EXPECT_EQ(guard.signal(), signal);
  }
}

/// How a child ends that gets `first` and `second` under a guard.
int status_after(int first, int second) {
  const pid_t child = ::fork();
  if (child == 0) {
    const InterruptGuard guard;
    ::raise(first);
    ::raise(second);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(Interrupt, TheSecondSignalEndsTheProcess) {
  for (const auto& [first, second] : {std::pair{SIGINT, SIGINT}, {SIGTERM, SIGINT}, {SIGINT, SIGTERM}}) {
    const int status = status_after(first, second);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), second);
  }
}

TEST(Interrupt, TheOldHandlersComeBack) {
  struct sigaction before {
  }, after{};
  ::sigaction(SIGTERM, nullptr, &before);
  { const InterruptGuard guard; }
  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

}  // namespace
}  // namespace yoke
