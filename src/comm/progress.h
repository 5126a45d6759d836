// The thread that makes all calls of the transport, beside the computation: it starts what was asked for, in the order
// of the program, looks after it until it is done, and watches the other ranks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/mesh.h"
#include "comm/recorder.h"
#include "comm/transport.h"
#include "comm/watch.h"

namespace yoke {

struct ProgressOptions {
  WatchOptions watch;
  std::filesystem::path records;  ///< folder of flight records; empty: none
};

/// But for the constructor and destructor everything is called by one thread, the one that computes.
class Progress {
 public:
  using StartTransport = std::function<std::unique_ptr<Transport>()>;

  /// Starts the transport on the thread; returns when it has started.
  Progress(const StartTransport& start, const ProgressOptions& options);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Aborts unless finish() was called.
  ~Progress();

  const Transport& transport() const { return *transport_; }

  /// A lane is a group of ranks that have their collectives in one order. This one holds all ranks.
  int host_lane() const { return 0; }
  /// Makes the lanes of this rank's groups; -1 where it is alone. Every rank calls it, in the same order.
  std::array<int, kGroups> open(const MeshSizes& sizes);
  /// The sequence number counts the lane's collectives from 1. UserError (lost_rank) as for wait().
  uint64_t start(int lane, const Collective& collective);
  /// Returns when this one and all before it on the lane are done. UserError (lost_rank) when that can't be.
  void wait(int lane, uint64_t sequence);

  /// See Mpi::set_patient().
  void set_patient(bool patient) { patient_ = patient; }

  /// Starts the record of collectives in another folder.
  void record(const std::filesystem::path& folder);

  /// Seconds so far that the computation stood still for others. What this process itself stood still meanwhile, as
  /// when it was stopped, is left out where it took longer than a second.
  double waited();

  /// Ends the transport; every rank calls it.
  void finish();
  [[noreturn]] void abort(int code);

 private:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    uint64_t sequence = 0;
    uint64_t order = 0;  // among the lane's collectives, sends and receives left out
    uint64_t record = 0;
    Collective collective;
    std::unique_ptr<Job> job;  // null: not begun
  };
  struct Lane {
    size_t group = kHostGroup;
    uint64_t mesh = 0;
    std::vector<int> members;  // ranks of the world
    std::unique_ptr<Link> link;
    uint64_t started = 0, ordered = 0;  // by the caller
    std::atomic<uint64_t> done{0};      // all up to here
    std::deque<Entry> entries;          // of the thread, like what follows
    uint64_t entered = 0;               // in order
  };
  struct Command {
    int lane = -1;
    Entry entry;
    std::function<void()> call;  // instead of an entry
  };

  void run(const StartTransport& start);
  /// Makes a lane of `colour`'s ranks; on the thread.
  int open_lane(size_t group, int colour, std::vector<int> members);
  bool take_commands();
  bool advance(Lane& lane);
  /// Until something is to be done.
  void rest(bool busy, int64_t idle_polls);

  /// Beats, and who is missing.
  void look(Clock::time_point now);
  Beat own_beat(Clock::time_point now);
  void fail(const std::string& message);
  /// Ends the process when the computation did not after a failure.
  void leave_when_late(Clock::time_point now);
  /// Called once a round of the thread.
  void notice_gap(Clock::time_point now);

  void push(Command command);
  /// Runs on the thread; returns when it has. False: not within `limit`.
  bool call(const std::function<void()>& function, std::chrono::seconds limit);
  [[noreturn]] void throw_failure();  // with the mutex held

  const ProgressOptions options_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::deque<Lane> lanes_;  // grows by calls only
  uint64_t meshes_ = 0;
  std::array<int, kWatchedGroups> watched_{};  // lanes of the newest mesh

  // Of the thread.
  std::optional<Watch> watch_;
  Clock::time_point next_look_, next_beat_, last_round_;
  bool ended_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;  // for the thread: commands have come
  std::condition_variable done_;  // for the caller: something is done
  std::deque<Command> commands_;
  std::string failure_;
  std::atomic<bool> failed_{false}, patient_{false};
  bool failure_taken_ = false;
  Clock::time_point failed_at_;
  std::atomic<int> waiting_{-1};  // lane for which the caller stands still
  Clock::time_point waiting_since_;
  Clock::duration waited_{};       // until the last wait ended
  Clock::duration stood_still_{};  // of it this process itself
  std::filesystem::path records_;  // where the record is kept now

  std::thread thread_;
};

}  // namespace yoke
