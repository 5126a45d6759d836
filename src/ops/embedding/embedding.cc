#include "ops/embedding/embedding.h"

#include "ops/check.h"
#include "ops/embedding/embedding_kernels.h"

namespace yoke {

void embedding_forward(Context& ctx, const EmbeddingForward& a) {
  check_compute_type("embedding", a.table);
  check_tensor("embedding", "tokens", a.tokens, DType::i32, 1, a.y.rows());
  check_tensor("embedding", "y", a.y, a.table.dtype, a.tokens.elements(), a.table.cols());
  const double moved = static_cast<double>(a.y.bytes());
  launch(ctx, "embedding_forward", embedding_forward_kernels, a, {.bytes_read = moved, .bytes_written = moved});
}

void embedding_backward(Context& ctx, const EmbeddingBackward& a) {
  check_compute_type("embedding", a.dy);
  check_tensor("embedding", "tokens", a.tokens, DType::i32, 1, a.dy.rows());
  const DType dtype = a.dtable.dtype == DType::bf16 ? DType::bf16 : DType::f32;
  check_tensor("embedding", "dtable", a.dtable, dtype, a.dtable.rows(), a.dy.cols());
  ArenaScope scope(ctx.arena);
  EmbeddingBackwardKernel kernel{a, {}};
  if (dtype == DType::bf16) kernel.order = ctx.arena.allocate("embedding order", DType::i32, {a.dy.rows()});
  const double touched = static_cast<double>(a.dy.elements()) * static_cast<double>(size_of(dtype));
  launch(ctx, "embedding_backward", embedding_backward_kernels, kernel,
         {.flops = static_cast<double>(a.dy.elements()),
          .bytes_read = static_cast<double>(a.dy.bytes()) + touched,
          .bytes_written = touched + (a.accumulate ? 0 : static_cast<double>(a.dtable.bytes()))});
}

}  // namespace yoke
