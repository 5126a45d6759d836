// Matrix product: c (+)= op(a) op(b) + bias, op being the identity or the transpose. Sums are fp32.
#pragma once

#include "device/context.h"

namespace yoke {

struct Matmul {
  TensorView a;     ///< [m, k], or [k, m] with transpose_a; f32 | bf16 | f16
  TensorView b;     ///< [k, n], or [n, k] with transpose_b; dtype of a
  TensorView c;     ///< [m, n]; dtype of a, or f32
  TensorView bias;  ///< [n] dtype of a, or absent
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  ///< c += instead of c =; c is then f32, or has the dtype of a
};

/// Workspace: the library's, and fp32 copies of operands whose type has no products on this device (fp16 on the CPU;
/// bf16 on processors without AVX512-BF16).
void matmul(Context& ctx, const Matmul& args);

}  // namespace yoke
