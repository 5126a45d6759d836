#include "ops/bias/bias.h"

#include "ops/bias/bias_kernels.h"
#include "ops/check.h"

namespace yoke {

void bias_backward(Context& ctx, const BiasBackward& a) {
  check_compute_type("bias", a.dy);
  check_tensor("bias", "dbias", a.dbias, DType::f32, 1, a.dy.cols());
  ArenaScope scope(ctx.arena);
  BiasBackwardKernel kernel{a, {}};
  kernel.partial = ctx.arena.allocate("bias partial", DType::f32, {ctx.device.threads(), a.dy.cols()});
  launch(ctx, "bias_backward", bias_backward_kernels, kernel,
         {.flops = static_cast<double>(a.dy.elements()),
          .bytes_read = static_cast<double>(a.dy.bytes()),
          .bytes_written = static_cast<double>(a.dbias.bytes())});
}

}  // namespace yoke
