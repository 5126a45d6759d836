#include "model/tensor_parallel.h"

namespace yoke {

TensorView room_for_tokens(Context& ctx, const Communicator* tensor, const TensorView& slice) {
  if (!divided(tensor)) return slice;
  return ctx.arena.allocate("all tokens", slice.dtype, {slice.rows() * tensor->size(), slice.cols()},
                            MemoryKind::scratch);
}

TensorView gather_tokens(Context& ctx, Communicator* tensor, const TensorView& slice, const char* what, int64_t layer) {
  const TensorView all = room_for_tokens(ctx, tensor, slice);
  if (divided(tensor)) {
    tensor->run(ctx, {.kind = CollectiveKind::all_gather, .input = slice, .output = all, .what = what, .layer = layer});
  }
  return all;
}

void scatter_tokens(Context& ctx, Communicator* tensor, const TensorView& addends, const TensorView& slice,
                    const char* what, int64_t layer) {
  if (!divided(tensor)) return;
  tensor->run(
      ctx, {.kind = CollectiveKind::reduce_scatter, .input = addends, .output = slice, .what = what, .layer = layer});
}

}  // namespace yoke
