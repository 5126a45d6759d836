// Element by element: addition, conversion, constants and random normals.
#pragma once

#include "base/random.h"
#include "device/context.h"

namespace yoke {

/// y = a + b, computed in fp32; y may be an operand of its type.
struct Add {
  TensorView a;     ///< [rows, cols] f32 | bf16 | f16
  TensorView b, y;  ///< [rows, cols] a's type or, where a is f32, any of them
};
void add(Context& ctx, const Add& args);

/// y = x between f32, bf16, f16 (and f64 to f32), rounding to nearest even; also copies strided rows.
struct Convert {
  TensorView x, y;  ///< [rows, cols]
};
void convert(Context& ctx, const Convert& args);

struct Fill {
  TensorView y;  ///< f32 | bf16 | f16 | f64, or u8: value is then a whole number of 0 to 255
  float value = 0;
};
void fill(Context& ctx, const Fill& args);

/// Element j of row i becomes mean 0, deviation `deviation`, from random.normal(first + i * row_step + j): independent
/// of threads and of how a tensor is cut into pieces.
struct FillNormal {
  TensorView y;  ///< [rows, cols] contiguous f32 | bf16 | f16
  RandomStream random;
  uint64_t first = 0;
  float deviation = 1;
  int64_t row_step = 0;  ///< 0: cols
};
void fill_normal(Context& ctx, const FillNormal& args);

}  // namespace yoke
