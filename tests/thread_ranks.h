// Ranks as threads of one process, for tests of whatever talks through communicators: no launcher, and sanitizers see
// all ranks. Strict where an MPI library may be lenient: a send is done only when it meets its receive, results appear
// at wait() and not before (outputs hold NaN until then), and calls that differ between ranks are errors.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/parallel.h"

namespace yoke::test {

using Bytes = std::vector<std::byte>;

/// What a group's ranks bring to one collective, and what they take away.
struct Meeting {
  std::vector<Collective> calls;
  std::vector<std::string> texts;  ///< of host collectives
  std::vector<std::vector<double>> values;
  std::vector<Bytes> results;  ///< to be copied to each rank's output
  size_t arrived = 0, left = 0;
  bool done = false;
};

template <class T, class Wide>
void reduce_values(const std::vector<const void*>& inputs, int64_t count, Reduction reduction, void* to) {
  for (int64_t i = 0; i < count; ++i) {
    const auto at = [&](size_t r) { return static_cast<const T*>(inputs[r])[i]; };
    const auto wide = [](T x) {
      if constexpr (std::is_same_v<T, Wide>)
        return x;
      else
        return to_float(x);
    };
    T sum = at(0);
    for (size_t r = 1; r < inputs.size(); ++r) {
      const Wide a = wide(sum), b = wide(at(r)), c = reduction == Reduction::sum ? a + b : std::max(a, b);
      if constexpr (std::is_same_v<T, Wide>)
        sum = c;
      else
        sum = from_float<T>(c);
    }
    static_cast<T*>(to)[i] = sum;
  }
}

/// All ranks' inputs, added element by element in the order of ranks.
inline Bytes reduced(const std::vector<Collective>& calls) {
  const TensorView& first = calls[0].input;
  Bytes result(first.bytes());
  std::vector<const void*> inputs;
  for (const Collective& call : calls) inputs.push_back(call.input.data);
  const auto reduce = [&](auto type, auto wide) {
    reduce_values<decltype(type), decltype(wide)>(inputs, first.elements(), calls[0].reduction, result.data());
  };
  switch (first.dtype) {
    case DType::f32:
      reduce(float{}, float{});
      break;
    case DType::f64:
      reduce(double{}, double{});
      break;
    case DType::i32:
      reduce(int32_t{}, int32_t{});
      break;
    case DType::bf16:
      reduce(bf16{}, float{});
      break;
    case DType::f16:
      reduce(f16{}, float{});
      break;
    default:
      throw std::logic_error("no reduction of " + first.str());
  }
  return result;
}

/// What each rank's result is, once all are there; `root` of a broadcast.
inline std::vector<Bytes> carry_out(const std::vector<Collective>& calls) {
  const size_t n = calls.size(), bytes = calls[0].input.bytes();
  const auto data = [&](size_t r) { return static_cast<const std::byte*>(calls[r].input.data); };
  std::vector<Bytes> results(n);
  switch (calls[0].kind) {
    case CollectiveKind::all_reduce:
      results.assign(n, reduced(calls));
      break;
    case CollectiveKind::reduce_scatter: {
      const Bytes sum = reduced(calls);
      for (size_t r = 0; r < n; ++r)
        results[r].assign(sum.data() + r * (bytes / n), sum.data() + (r + 1) * (bytes / n));
      break;
    }
    case CollectiveKind::all_gather: {
      Bytes all;
      for (size_t r = 0; r < n; ++r) all.insert(all.end(), data(r), data(r) + bytes);
      results.assign(n, all);
      break;
    }
    case CollectiveKind::all_to_all:
      for (size_t r = 0; r < n; ++r) {
        for (size_t from = 0; from < n; ++from) {
          const std::byte* piece = data(from) + r * (bytes / n);
          results[r].insert(results[r].end(), piece, piece + bytes / n);
        }
      }
      break;
    case CollectiveKind::broadcast: {
      const auto root = static_cast<size_t>(calls[0].peer);
      results.assign(n, Bytes(data(root), data(root) + bytes));
      break;
    }
    default:
      break;
  }
  return results;
}

/// What the ranks of a world share.
class ThreadWorld {
 public:
  /// Ranks stop waiting, with an error, after this long.
  explicit ThreadWorld(std::chrono::seconds patience) : patience_(patience) {}

  using Channel = std::vector<int>;  ///< group, then whom it connects
  /// `enter` puts this rank's part into the channel's meeting number `sequence`; the last of `n` carries it out.
  void meet(const Channel& channel, uint64_t sequence, size_t n, const std::function<void(Meeting&)>& enter,
            const std::function<void(Meeting&)>& carry) {
    const std::lock_guard lock(mutex_);
    // What a failed rank brought may be gone.
    if (lost_) throw UserError(ExitCode::lost_rank, "another rank failed");
    Meeting& meeting = meetings_[{channel, sequence}];
    enter(meeting);
    if (++meeting.arrived < n) return;
    carry(meeting);
    meeting.done = true;
    changed_.notify_all();
  }
  /// Waits until the meeting was carried out, then lets `take` have its results.
  void finish(const Channel& channel, uint64_t sequence, size_t n, const std::string& what,
              const std::function<void(Meeting&)>& take) {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_.at({channel, sequence});
    const bool done = changed_.wait_for(lock, patience_, [&] { return meeting.done || lost_; });
    if (!meeting.done) {
      throw UserError(ExitCode::lost_rank, done ? what + ": another rank failed"
                                                : what + ": no end after " + std::to_string(patience_.count()) + " s");
    }
    take(meeting);
    if (++meeting.left == n) meetings_.erase({channel, sequence});
  }
  void lose() {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    changed_.notify_all();
  }

 private:
  std::chrono::seconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<Channel, uint64_t>, Meeting> meetings_;
  bool lost_ = false;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(ThreadWorld& world, Group group, int rank, std::vector<int> members)
      : Communicator(group, rank, static_cast<int>(members.size())), world_(world), members_(std::move(members)) {}

 protected:
  Pending start_shared(Context& ctx, const Collective& c) override {
    if (ctx.device.is_dry()) return {++started_, ctx.stream.clock()};
    Open open{.call = c};
    const bool pair = c.kind == CollectiveKind::send || c.kind == CollectiveKind::receive;
    open.n = pair ? 2 : members_.size();
    open.me = pair ? c.kind == CollectiveKind::receive : static_cast<size_t>(rank());
    open.channel = {static_cast<int>(group()), pair};
    if (pair) {
      const int peer = members_.at(static_cast<size_t>(c.peer)), self = members_[static_cast<size_t>(rank())];
      open.channel.push_back(open.me == 0 ? self : peer);
      open.channel.push_back(open.me == 0 ? peer : self);
    } else {
      open.channel.insert(open.channel.end(), members_.begin(), members_.end());
    }
    open.sequence = ++sequences_[open.channel];
    poison(c);
    world_.meet(
        open.channel, open.sequence, open.n,
        [&](Meeting& m) {
          m.calls.resize(open.n);
          m.calls[open.me] = c;
        },
        [&](Meeting& m) {
          compare(m.calls);
          m.results = pair ? std::vector<Bytes>{{}, contents(m.calls[0].input)} : carry_out(m.calls);
        });
    open_.emplace(++started_, std::move(open));
    return {started_, 0};
  }

  void wait_shared(Context&, const Pending& pending) override {
    while (!open_.empty() && open_.begin()->first <= pending.sequence()) {
      const Open open = std::move(open_.begin()->second);
      open_.erase(open_.begin());
      const Collective& c = open.call;
      const std::string what =
          fmt::format("{} collective {} ({}) on rank {}", name_of(group()), open.sequence, c.what, rank());
      world_.finish(open.channel, open.sequence, open.n, what, [&](Meeting& m) {
        const TensorView& to = c.output.absent() ? c.input : c.output;
        const Bytes& result = m.results[open.me];
        if (c.kind != CollectiveKind::send && !result.empty()) std::memcpy(to.data, result.data(), result.size());
      });
    }
  }

 private:
  struct Open {
    Collective call;
    ThreadWorld::Channel channel;
    uint64_t sequence = 0;
    size_t n = 0, me = 0;
  };

  static Bytes contents(const TensorView& t) {
    const auto* data = static_cast<const std::byte*>(t.data);
    return {data, data + t.bytes()};
  }

  /// Who reads a result before waiting for it gets NaN.
  static void poison(const Collective& c) {
    if (c.output.absent()) return;
    auto* begin = static_cast<std::byte*>(c.output.data);
    auto* end = begin + c.output.bytes();
    if (c.input.absent()) return void(std::memset(begin, 0xff, c.output.bytes()));
    auto* in = static_cast<std::byte*>(c.input.data);
    auto* in_end = in + c.input.bytes();
    if (c.kind == CollectiveKind::all_gather && in >= begin && in_end <= end) {
      std::memset(begin, 0xff, static_cast<size_t>(in - begin));
      std::memset(in_end, 0xff, static_cast<size_t>(end - in_end));
    } else if (in_end <= begin || end <= in) {
      std::memset(begin, 0xff, c.output.bytes());
    }
  }

  void compare(const std::vector<Collective>& calls) const {
    const Collective& a = calls[0];
    const size_t n = members_.size(), in = a.input.absent() ? 0 : a.input.bytes();
    const auto require = [&](bool legal, const char* why, const Collective& c) {
      if (!legal) throw std::logic_error(fmt::format("{}: {} '{}' and '{}'", name_of(group()), why, a.what, c.what));
    };
    for (const Collective& c : calls) {
      const bool pair = a.kind == CollectiveKind::send;
      require(pair || (c.kind == a.kind && c.reduction == a.reduction), "kinds differ:", c);
      require(pair || (c.input.bytes() == in && c.input.dtype == a.input.dtype), "inputs differ:", c);
      const size_t out = c.output.absent() ? 0 : c.output.bytes();
      if (c.kind == CollectiveKind::receive) require(out == in && c.output.dtype == a.input.dtype, "sizes:", c);
      if (c.kind == CollectiveKind::all_gather) require(out == in * n, "output is not n inputs:", c);
      if (c.kind == CollectiveKind::reduce_scatter) require(out * n == in, "output is not a piece of the input:", c);
      if (c.kind == CollectiveKind::all_to_all) require(out == in, "output is not as the input:", c);
      if (c.kind == CollectiveKind::all_reduce) require(c.output.absent(), "an output:", c);
      if (c.kind == CollectiveKind::broadcast) require(c.peer == a.peer && c.output.absent(), "roots differ:", c);
    }
  }

  ThreadWorld& world_;
  std::vector<int> members_;  ///< world ranks
  std::map<ThreadWorld::Channel, uint64_t> sequences_;
  std::map<uint64_t, Open> open_;
  uint64_t started_ = 0;
};

class ThreadHostGroup : public HostGroup {
 public:
  ThreadHostGroup(ThreadWorld& world, int rank, int size)
      : world_(world), rank_(static_cast<size_t>(rank)), size_(static_cast<size_t>(size)) {}

  std::vector<std::string> all_gather(const std::string& text) override {
    std::vector<std::string> all;
    meet([&](Meeting& m) { m.texts[rank_] = text; }, [&](Meeting& m) { all = m.texts; });
    return all;
  }
  void all_reduce(std::span<double> values, Reduction reduction) override {
    meet([&](Meeting& m) { m.values[rank_].assign(values.begin(), values.end()); },
         [&](Meeting& m) {
           for (size_t i = 0; i < values.size(); ++i) {
             values[i] = m.values[0][i];
             for (size_t r = 1; r < size_; ++r) {
               const double other = m.values[r].at(i);
               values[i] = reduction == Reduction::sum ? values[i] + other : std::max(values[i], other);
             }
           }
         });
  }
  std::string broadcast(const std::string& text) override { return all_gather(text)[0]; }
  void barrier() override { all_gather(""); }

 private:
  void meet(const std::function<void(Meeting&)>& enter, const std::function<void(Meeting&)>& take) {
    const ThreadWorld::Channel channel{-1};
    const uint64_t sequence = ++sequence_;
    world_.meet(
        channel, sequence, size_,
        [&](Meeting& m) {
          m.texts.resize(size_);
          m.values.resize(size_);
          enter(m);
        },
        [](Meeting&) {});
    world_.finish(channel, sequence, size_, "host collective", take);
  }

  ThreadWorld& world_;
  size_t rank_, size_;
  uint64_t sequence_ = 0;
};

/// Calls body(parallel) for every rank of the mesh, each in a thread of its own. Rethrows what a rank threw; the others
/// then stop waiting.
inline void run_ranks(const MeshSizes& sizes, const std::function<void(const Parallel&)>& body,
                      std::chrono::seconds patience = std::chrono::seconds(120)) {
  ThreadWorld world(patience);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < sizes.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Mesh mesh(sizes, rank);
        Parallel::Communicators communicators;
        for (size_t g = 0; g < kGroups; ++g) {
          const std::vector<int> members = mesh.members(static_cast<Group>(g));
          const auto at = std::find(members.begin(), members.end(), rank) - members.begin();
          communicators[g] =
              std::make_unique<ThreadCommunicator>(world, static_cast<Group>(g), static_cast<int>(at), members);
        }
        body(Parallel(mesh, std::move(communicators), std::make_unique<ThreadHostGroup>(world, rank, sizes.ranks())));
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world.lose();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace yoke::test
