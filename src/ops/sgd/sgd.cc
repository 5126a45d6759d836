#include "ops/sgd/sgd.h"

#include "ops/sgd/sgd_kernels.h"

namespace yoke {

void sgd(Context& ctx, const Sgd& a) {
  const int64_t count = a.weights.master.elements();
  check_weights("sgd", a.weights, count);
  check_gradient("sgd", a.gradient, count);
  if (!a.m.values.absent()) check_moment("sgd", "m", a.m, count);
  const double state = a.m.values.absent() ? 0 : bytes_of(a.m);
  launch(ctx, "sgd", sgd_kernels, {a, &dynamic_map(true)},
         {.flops = 6.0 * static_cast<double>(count),
          .bytes_read = static_cast<double>(a.gradient.bytes() + a.weights.master.bytes()) + state,
          .bytes_written = bytes_of(a.weights) + state});
}

}  // namespace yoke
