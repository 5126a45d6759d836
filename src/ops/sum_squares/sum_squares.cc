#include "ops/sum_squares/sum_squares.h"

#include "ops/check.h"
#include "ops/sum_squares/sum_squares_kernels.h"

namespace yoke {

void sum_squares(Context& ctx, const SumSquares& a) {
  check_compute_type("sum_squares", a.x);
  YOKE_ASSERT(a.x.contiguous());
  check_tensor("sum_squares", "y", a.y, DType::f64, 1, 1);
  ArenaScope scope(ctx.arena);
  SumSquaresKernel kernel{a, {}};
  const int64_t chunks = (a.x.elements() + SumSquaresKernel::kChunk - 1) / SumSquaresKernel::kChunk;
  kernel.partial = ctx.arena.allocate("sum_squares partial", DType::f64, {chunks});
  launch(ctx, "sum_squares", sum_squares_kernels, kernel,
         {.flops = 2.0 * static_cast<double>(a.x.elements()),
          .bytes_read = static_cast<double>(a.x.bytes()),
          .bytes_written = static_cast<double>(a.y.bytes())});
}

}  // namespace yoke
