// Argument checks that every operation shares. A failed check is a bug of the caller's, never a user's mistake.
#pragma once

#include "base/tensor.h"

namespace yoke {

/// `t` holds a type that blocks compute in: f32, bf16 or f16.
void check_compute_type(const char* op, const TensorView& t);
/// `t` has that type, rows() and cols().
void check_tensor(const char* op, const char* name, const TensorView& t, DType dtype, int64_t rows, int64_t cols);

/// `t` is contiguous and holds that many elements of the type, whatever its shape.
void check_elements(const char* op, const char* name, const TensorView& t, DType dtype, int64_t elements);

}  // namespace yoke
