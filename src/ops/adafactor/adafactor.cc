#include "ops/adafactor/adafactor.h"

#include <cmath>

#include "ops/adafactor/adafactor_kernels.h"
#include "ops/check.h"

namespace yoke {

void adafactor(Context& ctx, const Adafactor& a) {
  const int64_t rows = a.weights.master.rows(), cols = a.weights.master.cols(), count = rows * cols;
  YOKE_ASSERT(a.step >= 1, "adafactor: step {}", a.step);
  check_weights("adafactor", a.weights, count);
  check_gradient("adafactor", a.gradient, count);
  double state = 0;
  if (a.v.absent()) {
    check_elements("adafactor", "row", a.row, DType::f32, rows);
    check_elements("adafactor", "col", a.col, DType::f32, cols);
    state = static_cast<double>(a.row.bytes() + a.col.bytes());
  } else {
    YOKE_ASSERT(rows == 1 && a.row.absent() && a.col.absent(), "adafactor: a vector of {}", a.weights.master.str());
    check_elements("adafactor", "v", a.v, DType::f32, cols);
    state = static_cast<double>(a.v.bytes());
  }
  ArenaScope scope(ctx.arena);
  const double beta = 1 - std::pow(static_cast<double>(a.step), -0.8);
  AdafactorKernel kernel{a, static_cast<float>(beta), ctx.arena.allocate("adafactor sums", DType::f64, {rows})};
  launch(ctx, "adafactor", adafactor_kernels, kernel,
         {.flops = 16.0 * static_cast<double>(count),
          .bytes_read = static_cast<double>(a.gradient.bytes() + a.weights.master.bytes()) + state,
          .bytes_written = bytes_of(a.weights) + state});
}

}  // namespace yoke
