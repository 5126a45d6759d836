#include "ops/elementwise/elementwise.h"

#include "ops/check.h"
#include "ops/elementwise/elementwise_kernels.h"

namespace yoke {

void add(Context& ctx, const Add& a) {
  check_compute_type("add", a.y);
  check_tensor("add", "a", a.a, a.a.dtype == DType::f32 ? DType::f32 : a.y.dtype, a.y.rows(), a.y.cols());
  check_tensor("add", "b", a.b, a.y.dtype, a.y.rows(), a.y.cols());
  launch(ctx, "add", add_kernels, a,
         {.flops = static_cast<double>(a.y.elements()),
          .bytes_read = static_cast<double>(a.a.bytes() + a.b.bytes()),
          .bytes_written = static_cast<double>(a.y.bytes())});
}

void convert(Context& ctx, const Convert& a) {
  check_compute_type("convert", a.y);
  if (a.x.dtype == DType::f64) {
    YOKE_ASSERT(a.y.dtype == DType::f32, "convert of fp64 to {}", name_of(a.y.dtype));
  } else {
    check_compute_type("convert", a.x);
  }
  check_tensor("convert", "x", a.x, a.x.dtype, a.y.rows(), a.y.cols());
  launch(ctx, "convert", convert_kernels, a,
         {.bytes_read = static_cast<double>(a.x.bytes()), .bytes_written = static_cast<double>(a.y.bytes())});
}

void fill(Context& ctx, const Fill& a) {
  if (a.y.dtype != DType::u8 && a.y.dtype != DType::f64) check_compute_type("fill", a.y);
  launch(ctx, "fill", fill_kernels, a, {.bytes_written = static_cast<double>(a.y.bytes())});
}

void fill_normal(Context& ctx, const FillNormal& a) {
  check_compute_type("fill_normal", a.y);
  YOKE_ASSERT(a.y.contiguous() && a.row_step >= 0);
  launch(ctx, "fill_normal", fill_normal_kernels, a, {.bytes_written = static_cast<double>(a.y.bytes())});
}

}  // namespace yoke
