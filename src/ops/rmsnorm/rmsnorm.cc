#include "ops/rmsnorm/rmsnorm.h"

#include "ops/check.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"

namespace yoke {

void rms_norm_forward(Context& ctx, const RmsNormForward& a) {
  const int64_t rows = a.x.rows(), cols = a.x.cols();
  check_compute_type("rms_norm", a.x);
  check_tensor("rms_norm", "weight", a.weight, a.x.dtype, 1, cols / a.groups);
  check_tensor("rms_norm", "y", a.y, a.x.dtype, rows, cols);
  check_elements("rms_norm", "rstd", a.rstd, DType::f32, rows * a.groups);
  YOKE_ASSERT(a.delta.absent() == a.residual_out.absent());
  if (!a.delta.absent()) {
    check_tensor("rms_norm", "delta", a.delta, a.x.dtype, rows, cols);
    check_tensor("rms_norm", "residual_out", a.residual_out, a.x.dtype, rows, cols);
  }
  const double tensor = static_cast<double>(a.x.bytes());
  const bool add = !a.delta.absent();
  launch(ctx, "rms_norm_forward", rms_norm_forward_kernels, a,
         {.flops = (add ? 5.0 : 4.0) * static_cast<double>(a.x.elements()),
          .bytes_read = add ? 2 * tensor : tensor,
          .bytes_written = add ? 2 * tensor : tensor});
}

void rms_norm_backward(Context& ctx, const RmsNormBackward& a) {
  const int64_t rows = a.x.rows(), cols = a.x.cols();
  check_compute_type("rms_norm", a.x);
  check_tensor("rms_norm", "dy", a.dy, a.x.dtype, rows, cols);
  check_tensor("rms_norm", "weight", a.weight, a.x.dtype, 1, cols / a.groups);
  check_elements("rms_norm", "rstd", a.rstd, DType::f32, rows * a.groups);
  check_tensor("rms_norm", "dx", a.dx, a.x.dtype, rows, cols);
  if (!a.residual_gradient.absent()) {
    check_tensor("rms_norm", "residual_gradient", a.residual_gradient, a.x.dtype, rows, cols);
  }
  if (!a.dweight.absent()) check_tensor("rms_norm", "dweight", a.dweight, DType::f32, 1, cols / a.groups);

  ArenaScope scope(ctx.arena);
  RmsNormBackwardKernel kernel{a, {}};
  if (!a.dweight.absent())
    kernel.partial = ctx.arena.allocate("rms_norm partial", DType::f32, {ctx.device.threads(), cols / a.groups});
  const double tensor = static_cast<double>(a.x.bytes());
  launch(ctx, "rms_norm_backward", rms_norm_backward_kernels, kernel,
         {.flops = 10.0 * static_cast<double>(a.x.elements()),
          .bytes_read = (a.residual_gradient.absent() ? 2 : 3) * tensor,
          .bytes_written = tensor});
}

}  // namespace yoke
