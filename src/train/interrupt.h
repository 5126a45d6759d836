// Ctrl-C and SIGTERM, and SIGUSR1, which comes from the process that started a rank, as a flag that the trainer asks
// between steps.
#pragma once

#include <signal.h>

namespace yoke {

/// While one lives, the first SIGINT, SIGTERM or SIGUSR1 only sets a flag and the second ends the process as if there
/// were no guard. At most one at a time. Child processes and system calls in flight are left alone (SA_RESTART).
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard();

  /// The signal that came first, or 0. Any thread may ask.
  int signal() const;
  bool requested() const { return signal() != 0; }

 private:
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
  struct sigaction old_user_ {};
};

}  // namespace yoke
