#include "train/interrupt.h"

#include <atomic>

#include "base/error.h"

namespace yoke {

namespace {

// A signal handler gets no argument of ours, so the flag has to live outside the guard.
std::atomic<int> received{0};
std::atomic<bool> guarded{false};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  int none = 0;
  if (received.compare_exchange_strong(none, signal)) return;
  ::signal(signal, SIG_DFL);  // pending until this handler returns, then fatal
  ::raise(signal);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  YOKE_ASSERT(!guarded.exchange(true), "two interrupt guards at once");
  received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &old_interrupt_);
  ::sigaction(SIGTERM, &action, &old_terminate_);
  ::sigaction(SIGUSR1, &action, &old_user_);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &old_interrupt_, nullptr);
  ::sigaction(SIGTERM, &old_terminate_, nullptr);
  ::sigaction(SIGUSR1, &old_user_, nullptr);
  guarded = false;
}

int InterruptGuard::signal() const { return received; }

}  // namespace yoke
