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

Pending Communicator::start(Context& ctx, const Collective& c) {
  YOKE_ASSERT(c.input.absent() || c.input.contiguous());
  YOKE_ASSERT(c.output.absent() || c.output.contiguous());
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
