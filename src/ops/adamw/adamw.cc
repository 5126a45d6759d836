#include "ops/adamw/adamw.h"

#include <cmath>

#include "ops/adamw/adamw_kernels.h"

namespace yoke {

namespace {

float unbias(float beta, int64_t step) {
  return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), static_cast<double>(step))));
}

}  // namespace

void adamw(Context& ctx, const AdamW& a) {
  const int64_t count = a.weights.master.elements();
  YOKE_ASSERT(a.step >= 1, "adamw: step {}", a.step);
  check_weights("adamw", a.weights, count);
  check_gradient("adamw", a.gradient, count);
  check_moment("adamw", "m", a.m, count);
  check_moment("adamw", "v", a.v, count);
  const double state = bytes_of(a.m) + bytes_of(a.v);
  launch(ctx, "adamw", adamw_kernels,
         {a, unbias(a.beta1, a.step), unbias(a.beta2, a.step), &dynamic_map(true), &dynamic_map(false)},
         {.flops = 16.0 * static_cast<double>(count),
          .bytes_read = static_cast<double>(a.gradient.bytes() + a.weights.master.bytes()) + state,
          .bytes_written = bytes_of(a.weights) + state});
}

}  // namespace yoke
