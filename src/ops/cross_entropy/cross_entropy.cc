#include "ops/cross_entropy/cross_entropy.h"

#include "ops/check.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"

namespace yoke {

void cross_entropy(Context& ctx, const CrossEntropy& a) {
  check_compute_type("cross_entropy", a.logits);
  const int64_t tokens = a.logits.rows();
  check_tensor("cross_entropy", "targets", a.targets, DType::i32, 1, tokens);
  check_tensor("cross_entropy", "loss", a.loss, DType::f32, 1, tokens);
  const bool gradient = !a.dlogits.absent();
  if (gradient) check_tensor("cross_entropy", "dlogits", a.dlogits, a.logits.dtype, tokens, a.logits.cols());
  // A row is read for the loss and, while it is in the cache, once more for the gradient.
  const double tensor = static_cast<double>(a.logits.bytes());
  launch(ctx, "cross_entropy", cross_entropy_kernels, a,
         {.flops = (gradient ? 26.0 : 13.0) * static_cast<double>(a.logits.elements()),
          .bytes_read = tensor,
          .bytes_written = gradient ? tensor : 0});
}

}  // namespace yoke
