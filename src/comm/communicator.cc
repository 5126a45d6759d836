#include "comm/communicator.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "device/transfer.h"

namespace yoke {

double ring_bytes(const Collective& c, int ranks) {
  if (ranks == 1) return 0;
  const auto others = static_cast<double>(ranks - 1);
  const auto input = static_cast<double>(c.input.absent() ? 0 : c.input.bytes());
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return 2 * others / ranks * input;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      return others / ranks * input;
    case CollectiveKind::all_gather:
      return others * input;
    case CollectiveKind::broadcast:
    case CollectiveKind::send:
      return input;
    case CollectiveKind::receive:
      return 0;
  }
  YOKE_ASSERT(false);
}

namespace {

// Shapes and ranks are as Collective says.
void check(const Collective& c, int ranks) {
  YOKE_ASSERT(c.input.absent() || c.input.contiguous());
  YOKE_ASSERT(c.output.absent() || c.output.contiguous());
  const bool one_tensor = c.kind == CollectiveKind::all_reduce || c.kind == CollectiveKind::broadcast ||
                          c.kind == CollectiveKind::send || c.kind == CollectiveKind::receive;
  YOKE_ASSERT(c.input.absent() == (c.kind == CollectiveKind::receive), "{}", c.what);
  YOKE_ASSERT(c.output.absent() == (one_tensor && c.kind != CollectiveKind::receive), "{}", c.what);
  const bool to_one =
      c.kind == CollectiveKind::broadcast || c.kind == CollectiveKind::send || c.kind == CollectiveKind::receive;
  YOKE_ASSERT(!to_one || (c.peer >= 0 && c.peer < ranks), "{}: peer {} of {}", c.what, c.peer, ranks);
  YOKE_ASSERT(c.channel >= 0 && c.channel < 256, "{}: channel {}", c.what, c.channel);
  if (one_tensor) return;
  const int64_t in = c.input.elements(), out = c.output.elements();
  const bool sizes = c.kind == CollectiveKind::reduce_scatter ? in == ranks * out
                     : c.kind == CollectiveKind::all_gather   ? out == ranks * in
                                                              : in == out && in % ranks == 0;
  YOKE_ASSERT(sizes && c.input.dtype == c.output.dtype, "{}: {} and {} on {} ranks", c.what, c.input.str(),
              c.output.str(), ranks);
}

}  // namespace

Pending Communicator::start(Context& ctx, const Collective& c) {
  check(c, size_);
  if (alone()) {
    YOKE_ASSERT(c.kind != CollectiveKind::send && c.kind != CollectiveKind::receive);
    if (!c.output.absent() && c.output.data != c.input.data) copy(ctx, c.input, c.output);
    return {};
  }
  ++traffic_.collectives;
  // Of a broadcast only the root sends.
  if (c.kind != CollectiveKind::broadcast || c.peer == rank_) traffic_.bytes += ring_bytes(c, size_);
  return start_shared(ctx, c);
}

void Communicator::wait(Context& ctx, const Pending& pending) {
  if (pending.sequence() == 0) return;
  if (ctx.device.is_dry()) {
    traffic_.waited += std::max(0.0, pending.ready() - ctx.stream.clock());
    ctx.stream.wait_until(pending.ready());
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  wait_shared(ctx, pending);
  traffic_.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace yoke
