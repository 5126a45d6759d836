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

void cross_entropy_sums(Context& ctx, const CrossEntropySums& a) {
  check_compute_type("cross_entropy_sums", a.logits);
  const int64_t tokens = a.logits.rows();
  check_tensor("cross_entropy_sums", "targets", a.targets, DType::i32, 1, tokens);
  check_tensor("cross_entropy_sums", "sums", a.sums, DType::f64, tokens, a.kSums);
  YOKE_ASSERT(a.sums.contiguous() && a.first >= 0 && a.vocabulary > 0);
  launch(ctx, "cross_entropy_sums", cross_entropy_sums_kernels, a,
         {.flops = 13.0 * static_cast<double>(a.logits.elements()),
          .bytes_read = static_cast<double>(a.logits.bytes()),
          .bytes_written = static_cast<double>(a.sums.bytes())});
}

void cross_entropy_shard(Context& ctx, const CrossEntropyShard& a) {
  check_compute_type("cross_entropy_shard", a.logits);
  const int64_t tokens = a.logits.rows();
  check_tensor("cross_entropy_shard", "targets", a.targets, DType::i32, 1, tokens);
  check_tensor("cross_entropy_shard", "loss", a.loss, DType::f32, 1, tokens);
  YOKE_ASSERT(a.sums.dtype == DType::f64 && a.sums.contiguous() && a.sums.shape.rank() == 3 &&
                  a.sums.shape[1] == tokens && a.sums.shape[2] == CrossEntropySums::kSums,
              "cross_entropy_shard: sums are {}", a.sums.str());
  const bool gradient = !a.dlogits.absent();
  if (gradient) check_tensor("cross_entropy_shard", "dlogits", a.dlogits, a.logits.dtype, tokens, a.logits.cols());
  const double tensor = gradient ? static_cast<double>(a.logits.bytes()) : 0;
  launch(ctx, "cross_entropy_shard", cross_entropy_shard_kernels, a,
         {.flops = gradient ? 13.0 * static_cast<double>(a.logits.elements()) : 0,
          .bytes_read = tensor + static_cast<double>(a.sums.bytes()),
          .bytes_written = tensor});
}

}  // namespace yoke
