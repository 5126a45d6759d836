#include "comm/progress.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "base/log.h"

namespace yoke {

namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

// A poll that took longer than this has moved data, and there may be more.
constexpr microseconds kWorked{15};
// While the caller waits the thread looks all the time, at first; while the caller computes, only now and then.
constexpr int64_t kHotPolls = 2000;
constexpr microseconds kShortRest{20}, kLongRest{60};
constexpr std::chrono::milliseconds kIdleRest{100};
// For the computation to end by itself, for the library to end, and for the library to end all ranks.
constexpr seconds kPatience{8}, kFinalize{60}, kAbort{3};
constexpr double kBeat = 1;        // seconds
constexpr seconds kStoodStill{1};  // between two rounds of the thread, which otherwise rests for milliseconds

double seconds_of(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(t.time_since_epoch()).count();
}

[[noreturn]] void say_and_exit(const std::string& message) {
  log::error("{}", message);
  spdlog::shutdown();
  std::fflush(nullptr);
  _exit(static_cast<int>(ExitCode::lost_rank));
}

}  // namespace

Progress::Progress(const StartTransport& start, const ProgressOptions& options) : options_(options) {
  watched_.fill(-1);
  watched_[kHostGroup] = 0;
  thread_ = std::thread([this, start] { run(start); });
  std::unique_lock lock(mutex_);
  const bool in_time = done_.wait_for(lock, std::chrono::duration<double>(options.watch.timeout),
                                      [&] { return transport_ != nullptr || failed_; });
  if (!in_time) {
    say_and_exit(fmt::format("MPI did not start within {:.0f} s: some rank did not come, or can't be reached",
                             options.watch.timeout));
  }
  if (failed_) {
    lock.unlock();
    thread_.join();
    throw UserError(ExitCode::lost_rank, failure_);
  }
  lock.unlock();
  if (!options.records.empty()) record(options.records);
}

Progress::~Progress() {
  if (thread_.joinable()) abort(static_cast<int>(ExitCode::bug));
}

void Progress::run(const StartTransport& start) {
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; else a rest takes 50 microseconds longer
  try {
    auto transport = start();
    const Clock::time_point now = Clock::now();
    watch_.emplace(options_.watch, transport->rank(), transport->hosts(), transport->processes(), seconds_of(now));
    next_look_ = next_beat_ = now;
    std::vector<int> all;
    for (int r = 0; r < transport->ranks(); ++r) all.push_back(r);
    const std::lock_guard lock(mutex_);
    transport_ = std::move(transport);
    open_lane(kHostGroup, 0, std::move(all));
  } catch (const std::exception& e) {
    return fail(e.what());
  }
  done_.notify_all();
  int64_t idle_polls = 0;
  last_round_ = Clock::now();
  while (!ended_) {
    notice_gap(Clock::now());
    bool happened = take_commands(), busy = false;
    const Clock::time_point begin = Clock::now();
    try {
      for (Lane& lane : lanes_) {
        happened = advance(lane) || happened;
        busy = busy || !lane.entries.empty();
      }
      if (begin >= next_look_ && !ended_ && !failed_) look(begin);
    } catch (const std::exception& e) {
      fail(e.what());
    }
    if (failed_) leave_when_late(begin);
    idle_polls = happened || Clock::now() - begin > kWorked ? 0 : idle_polls + 1;
    if (idle_polls > 0 && !ended_) rest(busy && !failed_, idle_polls);
  }
}

int Progress::open_lane(size_t group, int colour, std::vector<int> members) {
  auto link = transport_->split(colour);
  if (!link) return -1;
  Lane& lane = lanes_.emplace_back();
  lane.group = group;
  lane.mesh = meshes_;
  lane.members = std::move(members);
  lane.link = std::move(link);
  return static_cast<int>(lanes_.size()) - 1;
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
      continue;
    }
    Lane& lane = lanes_[static_cast<size_t>(c.lane)];
    lane.entered = std::max(lane.entered, c.entry.order);
    lane.entries.push_back(std::move(c.entry));
  }
  return !commands.empty();
}

bool Progress::advance(Lane& lane) {
  if (failed_ || lane.entries.empty()) return false;
  bool happened = false, may_start = true;
  for (Entry& e : lane.entries) {
    const bool free = is_point_to_point(e.collective.kind);  // of the order of collectives
    if (!e.job) {
      if (!free && !may_start) continue;
      e.job = lane.link->job(e.collective);
      if (recorder_) recorder_->entered(e.record);
      happened = true;
    }
    if (!e.job->done()) {
      happened = e.job->advance() || happened;
      if (e.job->done() && recorder_) recorder_->done(e.record);
    }
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
  const bool waiting = waiting_ >= 0;
  if (busy && waiting && idle_polls < kHotPolls) {
    sched_yield();
    return;
  }
  std::unique_lock lock(mutex_);
  if (!commands_.empty()) return;
  if (busy) {
    wake_.wait_for(lock, waiting ? kShortRest : kLongRest);
  } else {
    wake_.wait_for(lock, kIdleRest);
  }
}

Beat Progress::own_beat(Clock::time_point now) {
  Beat beat;
  for (size_t g = 0; g < kWatchedGroups; ++g) {
    if (watched_[g] < 0) continue;
    const Lane& lane = lanes_[static_cast<size_t>(watched_[g])];
    beat.groups[g] = {lane.mesh, lane.entered};
  }
  const std::lock_guard lock(mutex_);
  if (waiting_ < 0) return beat;
  const Lane& lane = lanes_[static_cast<size_t>(waiting_)];
  if (lane.entries.empty()) return beat;
  const Entry& e = lane.entries.front();  // everything before what is waited for has to end, too
  const Collective& c = e.collective;
  beat.wait = {.group = static_cast<int32_t>(lane.group),
               .kind = static_cast<int32_t>(c.kind),
               .order = e.order,
               .sequence = e.sequence,
               .layer = c.layer,
               .seconds = std::chrono::duration<double>(now - waiting_since_).count(),
               .peer = is_point_to_point(c.kind) ? lane.members[static_cast<size_t>(c.peer)] : -1};
  std::strncpy(beat.wait.what, c.what, sizeof beat.wait.what - 1);
  return beat;
}

void Progress::look(Clock::time_point now) {
  const double interval = std::min(kBeat, options_.watch.silence / 5);
  const auto after = [&](double s) {
    return now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
  };
  next_look_ = after(interval / 4);
  transport_->take_beats(sizeof(Beat), [&](int rank, const std::byte* bytes) {
    Beat beat;
    std::memcpy(&beat, bytes, sizeof beat);
    watch_->heard(rank, beat, seconds_of(now));
  });
  const Beat own = own_beat(now);
  if (now >= next_beat_) {
    transport_->send_beats(std::as_bytes(std::span(&own, 1)));
    next_beat_ = after(interval);
  }
  if (const auto wrong = watch_->verdict(own, seconds_of(now), patient_)) fail(*wrong);
}

void Progress::fail(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failure_ = message;
    if (!records_.empty()) failure_ += fmt::format(". {} holds each rank's last collectives", records_.string());
    failed_at_ = Clock::now();
    failed_ = true;
  }
  done_.notify_all();
}

void Progress::leave_when_late(Clock::time_point now) {
  std::unique_lock lock(mutex_);
  if (now - failed_at_ < kPatience) return;
  if (!failure_taken_) log::error("{}", failure_);
  lock.unlock();
  spdlog::default_logger()->flush();
  std::fflush(nullptr);
  const int code = static_cast<int>(ExitCode::lost_rank);
  std::thread([code] {
    std::this_thread::sleep_for(kAbort);
    _exit(code);
  }).detach();
  transport_->abort(code);
}

void Progress::throw_failure() {
  failure_taken_ = true;
  throw UserError(ExitCode::lost_rank, failure_);
}

void Progress::push(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
}

bool Progress::call(const std::function<void()>& function, seconds limit) {
  struct State {
    bool finished = false;
    std::exception_ptr error;
  };
  const auto state = std::make_shared<State>();
  push({.call = [this, state, function] {
    std::exception_ptr error;
    try {
      function();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    state->finished = true;
    state->error = error;
    done_.notify_all();
  }});
  std::unique_lock lock(mutex_);
  if (!done_.wait_for(lock, limit, [&] { return state->finished; })) return false;
  if (state->error) std::rethrow_exception(state->error);
  return true;
}

std::array<int, kGroups> Progress::open(const MeshSizes& sizes) {
  // The thread stands still while communicators are made, so everybody has to be there.
  char mine = 0;
  std::vector<char> all(static_cast<size_t>(transport_->ranks()));
  wait(host_lane(), start(host_lane(), {.kind = CollectiveKind::all_gather,
                                        .input = {&mine, DType::u8, {1}},
                                        .output = {all.data(), DType::u8, {transport_->ranks()}},
                                        .what = "a new mesh"}));
  std::array<int, kGroups> lanes;
  const bool in_time = call(
      [&] {
        const Mesh mesh(sizes, transport_->rank());
        ++meshes_;
        for (size_t g = 0; g < kGroups; ++g) {
          const std::vector<int> members = mesh.members(static_cast<Group>(g));
          watched_[g] = lanes[g] = open_lane(g, members.size() == 1 ? -1 : members.front(), members);
        }
        watch_->set_mesh(sizes, meshes_);
      },
      kFinalize);
  if (!in_time) say_and_exit("MPI could not make the communicators of a new mesh: a rank was lost meanwhile");
  return lanes;
}

void Progress::record(const std::filesystem::path& folder) {
  auto recorder = std::make_unique<FlightRecorder>(folder, transport_->rank(), transport_->ranks());
  if (!call([&] { recorder_.swap(recorder); }, kFinalize)) say_and_exit("MPI does not return any more");
  const std::lock_guard lock(mutex_);
  records_ = folder;
}

uint64_t Progress::start(int lane, const Collective& collective) {
  Lane& l = lanes_[static_cast<size_t>(lane)];
  Command command{.lane = lane};
  Entry& e = command.entry;
  e.sequence = ++l.started;
  e.order = is_point_to_point(collective.kind) ? 0 : ++l.ordered;
  const uint64_t sequence = e.sequence;
  e.collective = collective;
  if (recorder_) e.record = recorder_->asked(watched_name(l.group), e.sequence, collective);
  {
    const std::lock_guard lock(mutex_);
    if (failed_) throw_failure();
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
  return sequence;
}

void Progress::wait(int lane, uint64_t sequence) {
  Lane& l = lanes_[static_cast<size_t>(lane)];
  YOKE_ASSERT(sequence <= l.started, "{} of {}", sequence, l.started);
  if (l.done >= sequence) return;
  std::unique_lock lock(mutex_);
  waiting_since_ = Clock::now();
  waiting_ = lane;
  wake_.notify_one();
  done_.wait(lock, [&] { return failed_ || l.done >= sequence; });
  waiting_ = -1;
  waited_ += Clock::now() - waiting_since_;
  if (l.done < sequence) throw_failure();
}

void Progress::notice_gap(Clock::time_point now) {
  const Clock::duration gap = now - last_round_;
  last_round_ = now;
  if (gap < kStoodStill) return;
  const std::lock_guard lock(mutex_);
  // Making communicators takes long, too, but nobody is in wait() then.
  if (waiting_ >= 0) stood_still_ += std::min(gap, now - waiting_since_);
}

double Progress::waited() {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(waited_ - stood_still_).count();
}

void Progress::finish() {
  const bool in_time = call(
      [&] {
        transport_->finalize();
        ended_ = true;
      },
      kFinalize);
  if (!in_time) say_and_exit("MPI did not end: a rank was lost after its work was done");
  thread_.join();
}

void Progress::abort(int code) {
  push({.call = [this, code] { transport_->abort(code); }});
  // The library may hold the thread; its launcher sees this process end, then.
  std::this_thread::sleep_for(kAbort);
  _exit(code);
}

}  // namespace yoke
