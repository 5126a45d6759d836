#include "ops/rope/rope.h"

#include "ops/check.h"
#include "ops/rope/rope_kernels.h"

namespace yoke {

void rope(Context& ctx, const Rope& a) {
  check_compute_type("rope", a.x);
  YOKE_ASSERT(a.head_dim > 0 && a.head_dim % 2 == 0 && a.x.cols() % a.head_dim == 0, "rope: heads of {} in {}",
              a.head_dim, a.x.str());
  check_tensor("rope", "y", a.y, a.x.dtype, a.x.rows(), a.x.cols());
  check_tensor("rope", "positions", a.positions, DType::i32, 1, a.x.rows());
  check_tensor("rope", "table", a.table, DType::f32, a.table.rows(), a.head_dim);
  launch(ctx, "rope", rope_kernels, a,
         {.flops = 3.0 * static_cast<double>(a.x.elements()),
          .bytes_read = static_cast<double>(a.x.bytes()),
          .bytes_written = static_cast<double>(a.y.bytes())});
}

}  // namespace yoke
