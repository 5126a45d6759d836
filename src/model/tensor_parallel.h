// Sequence parallelism (Korthikanti et al. 2022): between the products of a block each rank of the tensor axis holds a
// slice of the micro-batch's tokens. Rank r of t has tokens [r T/t, (r + 1) T/t); products see all T.
//
// `tensor` is null or alone where the model isn't divided: a slice then is all there is, and nothing is copied,
// allocated or sent.
#pragma once

#include "comm/parallel.h"
#include "model/config.h"

namespace yoke {

inline bool divided(const Communicator* tensor) { return tensor != nullptr && !tensor->alone(); }
inline TensorShard shard_of(const Communicator* tensor) {
  return divided(tensor) ? TensorShard{tensor->rank(), tensor->size()} : TensorShard{};
}

/// Everybody's tokens [T, cols] from this rank's [T/t, cols], in memory of the arena. `what` is a literal.
TensorView gather_tokens(Context& ctx, Communicator* tensor, const TensorView& slice, const char* what,
                         int64_t layer = -1);
/// Memory [T, cols] for what this rank adds to everybody's tokens.
TensorView room_for_tokens(Context& ctx, const Communicator* tensor, const TensorView& slice);
/// slice = this rank's tokens of the sum of all ranks' `addends` [T, cols], which are from room_for_tokens() or
/// gather_tokens().
void scatter_tokens(Context& ctx, Communicator* tensor, const TensorView& addends, const TensorView& slice,
                    const char* what, int64_t layer = -1);

}  // namespace yoke
