// The thread that makes all calls of the transport, beside the computation: it starts what was asked for, in the order
// of the program, and looks after it until it is done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport.h"

namespace yoke {

class Progress {
 public:
  using StartTransport = std::function<std::unique_ptr<Transport>()>;

  /// Starts the transport on the thread; returns when it has started.
  explicit Progress(const StartTransport& start);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Aborts unless finish() was called.
  ~Progress();

  const Transport& transport() const { return *transport_; }

  /// Makes a link of the ranks of one colour, and a lane of collectives on it; -1 for a negative colour. Every rank
  /// calls it, in the same order.
  int open(Group group, int colour);
  /// From one thread, like everything below. The sequence number counts the lane's collectives from 1.
  uint64_t start(int lane, const Collective& collective);
  /// Returns when this one and all before it on the lane are done. UserError (lost_rank) when that can't be.
  void wait(int lane, uint64_t sequence);

  /// Ends the transport; every rank calls it.
  void finish();
  [[noreturn]] void abort(int code);

 private:
  struct Entry {
    uint64_t sequence = 0;
    Collective collective;
    std::unique_ptr<Job> job;  // null: not begun
  };
  struct Lane {
    Group group = Group::world;
    std::unique_ptr<Link> link;
    uint64_t started = 0;           // by the caller
    std::atomic<uint64_t> done{0};  // all up to here
    std::deque<Entry> entries;      // of the thread
  };
  struct Command {
    int lane = -1;
    Entry entry;
    std::function<void()> call;  // instead of an entry
  };

  void run(const StartTransport& start);
  bool take_commands();
  bool advance(Lane& lane);
  /// Until something is to be done.
  void rest(bool busy, int64_t idle_polls);
  void push(Command command);
  /// Runs on the thread; returns when it has.
  void call(const std::function<void()>& function);
  void fail(const std::string& message);
  void throw_if_failed();

  std::unique_ptr<Transport> transport_;
  std::deque<Lane> lanes_;  // grows by calls only

  std::mutex mutex_;
  std::condition_variable wake_;  // for the thread: commands have come
  std::condition_variable done_;  // for the caller: something is done
  std::deque<Command> commands_;
  std::string failure_;
  bool failed_ = false, ended_ = false;
  std::atomic<bool> waiting_{false};  // the caller stands still

  std::thread thread_;
};

}  // namespace yoke
