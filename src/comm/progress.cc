#include "comm/progress.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <exception>

#include "base/error.h"

namespace yoke {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// A poll that took longer than this has moved data, and there may be more.
constexpr microseconds kWorked{15};
// While the caller waits the thread looks all the time, at first; while the caller computes, only now and then.
constexpr int64_t kHotPolls = 2000;
constexpr microseconds kShortRest{20}, kLongRest{60};
constexpr std::chrono::milliseconds kIdleRest{100};
constexpr std::chrono::seconds kPatience{5};

bool point_to_point(CollectiveKind kind) { return kind == CollectiveKind::send || kind == CollectiveKind::receive; }

}  // namespace

Progress::Progress(const StartTransport& start) {
  thread_ = std::thread([this, start] { run(start); });
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return transport_ != nullptr || failed_; });
  if (failed_) {
    lock.unlock();
    thread_.join();
    throw UserError(ExitCode::lost_rank, failure_);
  }
}

Progress::~Progress() {
  if (thread_.joinable()) abort(static_cast<int>(ExitCode::bug));
}

void Progress::run(const StartTransport& start) {
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; else a rest takes 50 microseconds longer
  try {
    auto transport = start();
    const std::lock_guard lock(mutex_);
    transport_ = std::move(transport);
  } catch (const std::exception& e) {
    return fail(e.what());
  }
  done_.notify_all();
  int64_t idle_polls = 0;
  while (!ended_) {
    bool happened = take_commands(), busy = false;
    const auto begin = Clock::now();
    try {
      for (Lane& lane : lanes_) {
        happened = advance(lane) || happened;
        busy = busy || !lane.entries.empty();
      }
    } catch (const std::exception& e) {
      fail(e.what());
    }
    idle_polls = happened || Clock::now() - begin > kWorked ? 0 : idle_polls + 1;
    if (idle_polls > 0 && !ended_) rest(busy, idle_polls);
  }
}

bool Progress::take_commands() {
  std::deque<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& c : commands) {
    if (c.call) {
      c.call();
    } else {
      lanes_[static_cast<size_t>(c.lane)].entries.push_back(std::move(c.entry));
    }
  }
  return !commands.empty();
}

bool Progress::advance(Lane& lane) {
  if (failed_ || lane.entries.empty()) return false;
  bool happened = false, may_start = true;
  for (Entry& e : lane.entries) {
    const bool free = point_to_point(e.collective.kind);  // of the order of collectives
    if (!e.job) {
      if (!free && !may_start) continue;
      e.job = lane.link->job(e.collective);
      happened = true;
    }
    if (!e.job->done()) happened = e.job->advance() || happened;
    if (!free) may_start = may_start && e.job->next_may_start();
  }
  uint64_t done = 0;
  while (!lane.entries.empty() && lane.entries.front().job && lane.entries.front().job->done()) {
    done = lane.entries.front().sequence;
    lane.entries.pop_front();
  }
  if (done > 0) {
    {
      const std::lock_guard lock(mutex_);
      lane.done = done;
    }
    done_.notify_all();
  }
  return happened;
}

void Progress::rest(bool busy, int64_t idle_polls) {
  if (busy && waiting_ && idle_polls < kHotPolls) {
    sched_yield();
    return;
  }
  std::unique_lock lock(mutex_);
  if (!commands_.empty()) return;
  if (busy) {
    wake_.wait_for(lock, waiting_ ? kShortRest : kLongRest);
  } else {
    wake_.wait_for(lock, kIdleRest);
  }
}

void Progress::push(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
}

void Progress::fail(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failure_ = message;
    failed_ = true;
  }
  done_.notify_all();
}

void Progress::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (failed_) throw UserError(ExitCode::lost_rank, failure_);
}

void Progress::call(const std::function<void()>& function) {
  bool finished = false;
  std::exception_ptr error;
  push({.call = [&] {
    try {
      function();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    finished = true;
    done_.notify_all();
  }});
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return finished; });
  if (error) std::rethrow_exception(error);
}

int Progress::open(Group group, int colour) {
  int lane = -1;
  call([&] {
    auto link = transport_->split(colour);
    if (!link) return;
    lane = static_cast<int>(lanes_.size());
    Lane& l = lanes_.emplace_back();
    l.group = group;
    l.link = std::move(link);
  });
  return lane;
}

uint64_t Progress::start(int lane, const Collective& collective) {
  Lane& l = lanes_[static_cast<size_t>(lane)];
  const uint64_t sequence = ++l.started;
  push({.lane = lane, .entry = {sequence, collective, nullptr}});
  return sequence;
}

void Progress::wait(int lane, uint64_t sequence) {
  Lane& l = lanes_[static_cast<size_t>(lane)];
  YOKE_ASSERT(sequence <= l.started, "{} of {}", sequence, l.started);
  if (l.done >= sequence) return;
  std::unique_lock lock(mutex_);
  waiting_ = true;
  wake_.notify_one();
  done_.wait(lock, [&] { return failed_ || l.done >= sequence; });
  waiting_ = false;
  if (l.done < sequence) throw UserError(ExitCode::lost_rank, failure_);
}

void Progress::finish() {
  throw_if_failed();
  call([&] {
    transport_->finalize();
    ended_ = true;
  });
  thread_.join();
}

void Progress::abort(int code) {
  push({.call = [this, code] { transport_->abort(code); }});
  // The library may hold the thread; its launcher sees this process end, then.
  std::this_thread::sleep_for(kPatience);
  _exit(code);
}

}  // namespace yoke
