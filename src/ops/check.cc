#include "ops/check.h"

namespace yoke {

void check_compute_type(const char* op, const TensorView& t) {
  YOKE_ASSERT(t.dtype == DType::f32 || t.dtype == DType::bf16 || t.dtype == DType::f16, "{} of {}", op,
              name_of(t.dtype));
}

void check_tensor(const char* op, const char* name, const TensorView& t, DType dtype, int64_t rows, int64_t cols) {
  YOKE_ASSERT(t.dtype == dtype && t.rows() == rows && t.cols() == cols, "{}: {} is {}, expected {} [{}, {}]", op, name,
              t.str(), name_of(dtype), rows, cols);
}

void check_elements(const char* op, const char* name, const TensorView& t, DType dtype, int64_t elements) {
  YOKE_ASSERT(t.dtype == dtype && t.elements() == elements && t.contiguous(), "{}: {} is {}, expected {} x {}", op,
              name, t.str(), elements, name_of(dtype));
}

}  // namespace yoke
