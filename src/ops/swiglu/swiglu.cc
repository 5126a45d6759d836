#include "ops/swiglu/swiglu.h"

#include "ops/check.h"
#include "ops/swiglu/swiglu_kernels.h"

namespace yoke {

namespace {

constexpr double kFlopsOfExp = 10;

}  // namespace

void swiglu_forward(Context& ctx, const SwigluForward& a) {
  check_compute_type("swiglu", a.y);
  check_tensor("swiglu", "gate_up", a.gate_up, a.y.dtype, a.y.rows(), 2 * a.y.cols());
  launch(ctx, "swiglu_forward", swiglu_forward_kernels, a,
         {.flops = (kFlopsOfExp + 4) * static_cast<double>(a.y.elements()),
          .bytes_read = static_cast<double>(a.gate_up.bytes()),
          .bytes_written = static_cast<double>(a.y.bytes())});
}

void swiglu_backward(Context& ctx, const SwigluBackward& a) {
  check_compute_type("swiglu", a.dy);
  check_tensor("swiglu", "gate_up", a.gate_up, a.dy.dtype, a.dy.rows(), 2 * a.dy.cols());
  check_tensor("swiglu", "dgate_up", a.dgate_up, a.dy.dtype, a.dy.rows(), 2 * a.dy.cols());
  launch(ctx, "swiglu_backward", swiglu_backward_kernels, a,
         {.flops = (kFlopsOfExp + 10) * static_cast<double>(a.dy.elements()),
          .bytes_read = static_cast<double>(a.gate_up.bytes() + a.dy.bytes()),
          .bytes_written = static_cast<double>(a.dgate_up.bytes())});
}

}  // namespace yoke
