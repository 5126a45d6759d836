// Collectives of one group of ranks. They are started in the order of the program on every rank of the group and run
// beside the computation; who reads a result, or writes over an input, waits first.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "comm/mesh.h"
#include "device/context.h"

namespace yoke {

enum class CollectiveKind { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send, receive };
inline constexpr std::array<std::string_view, 7> kCollectiveNames{
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send", "receive"};
inline constexpr std::string_view name_of(CollectiveKind kind) { return kCollectiveNames[static_cast<size_t>(kind)]; }
inline constexpr bool is_point_to_point(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::receive;
}
enum class Reduction { sum, max };

/// One collective as one rank sees it. n: ranks of the group. Tensors are contiguous; equal types and sizes on all
/// ranks.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  /// all_reduce: [k], replaced by the result. reduce_scatter: [n k], all_gather: [k], all_to_all: [n k], send: what is
  /// sent. broadcast: the root's values, everybody's after it. Absent for receive.
  TensorView input;
  /// reduce_scatter: [k], may be this rank's piece of the input; all_gather: [n k], whose piece of this rank may be the
  /// input; all_to_all: [n k], not the input; receive: what comes. Else absent.
  TensorView output;
  int peer = -1;  ///< send, receive, broadcast (root): rank in the group
  /// f32, f64, i32, i64; bf16 and f16, which are added in f32 and rounded at each addition or once at the end.
  Reduction reduction = Reduction::sum;
  const char* what = "";  ///< for people who look for a lost rank: "gradients". A literal.
  int64_t layer = -1;     ///< for the same people
  int channel = 0;        ///< send and receive, 0 to 255: a receive gets the oldest send of its peer on its channel
};

/// Bytes that a rank sends in rings (Patarasuk and Yuan 2009): of S bytes an all-reduce 2 (n-1)/n S, of n k bytes a
/// reduce-scatter, an all-gather or an all-to-all (n-1) k, a send and a broadcast's root S.
double ring_bytes(const Collective& collective, int ranks);

/// A collective that was started.
class Pending {
 public:
  Pending() = default;
  Pending(uint64_t sequence, double ready) : sequence_(sequence), ready_(ready) {}
  uint64_t sequence() const { return sequence_; }  ///< of the communicator, from 1; 0: nothing to wait for
  double ready() const { return ready_; }          ///< the dry device's clock

 private:
  uint64_t sequence_ = 0;
  double ready_ = 0;
};

/// What went through a communicator.
struct Traffic {
  int64_t collectives = 0;
  double bytes = 0;   ///< sent, by ring_bytes()
  double waited = 0;  ///< seconds that the computation stood still for it
  bool operator==(const Traffic&) const = default;
};

class Communicator {
 public:
  explicit Communicator(Group group, int rank, int size) : group_(group), rank_(rank), size_(size) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  Group group() const { return group_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool alone() const { return size_ == 1; }
  const Traffic& traffic() const { return traffic_; }
  void clear_traffic() { traffic_ = {}; }

  /// After all work that ctx.stream has by now. Alone: a copy where input and output differ; send and receive are bugs.
  Pending start(Context& ctx, const Collective& collective);
  /// Work that is launched on ctx.stream from now on comes after the collective. Waits in order of starting: what was
  /// started before is done, too. UserError (lost) with rank, host, collective and sequence when it can't come to an
  /// end.
  void wait(Context& ctx, const Pending& pending);
  /// Both.
  void run(Context& ctx, const Collective& collective) { wait(ctx, start(ctx, collective)); }

 protected:
  virtual Pending start_shared(Context& ctx, const Collective& collective) = 0;
  virtual void wait_shared(Context& ctx, const Pending& pending) = 0;

 private:
  Group group_;
  int rank_, size_;
  Traffic traffic_;
};

}  // namespace yoke
