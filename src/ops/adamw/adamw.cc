#include "ops/adamw/adamw.h"

#include <cmath>

#include "ops/adamw/adamw_kernels.h"
#include "ops/check.h"

namespace yoke {

namespace {

float unbias(float beta, int64_t step) {
  return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), static_cast<double>(step))));
}

}  // namespace

void adamw(Context& ctx, const AdamW& a) {
  const int64_t count = a.master.elements();
  YOKE_ASSERT(a.step >= 1, "adamw: step {}", a.step);
  check_tensor("adamw", "master", a.master, DType::f32, 1, count);
  check_tensor("adamw", "gradient", a.gradient, DType::f32, 1, count);
  check_tensor("adamw", "m", a.m, DType::f32, 1, count);
  check_tensor("adamw", "v", a.v, DType::f32, 1, count);
  if (!a.weight.absent()) {
    YOKE_ASSERT(a.weight.dtype == DType::bf16 || a.weight.dtype == DType::f16, "adamw: weight is {}", a.weight.str());
    check_tensor("adamw", "weight", a.weight, a.weight.dtype, 1, count);
  }
  const double tensor = static_cast<double>(a.master.bytes());
  launch(ctx, "adamw", adamw_kernels, {a, unbias(a.beta1, a.step), unbias(a.beta2, a.step)},
         {.flops = 16.0 * static_cast<double>(count),
          .bytes_read = 4 * tensor,
          .bytes_written = 3 * tensor + (a.weight.absent() ? 0 : static_cast<double>(a.weight.bytes()))});
}

}  // namespace yoke
