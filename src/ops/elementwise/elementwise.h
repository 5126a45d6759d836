// Element by element: addition, conversion, constants and random normals.
#pragma once

#include "base/random.h"
#include "device/context.h"

namespace yoke {

/// y = a + b, computed in fp32; y may be a or b.
struct Add {
  TensorView a, b, y;  ///< [rows, cols] of one type
};
void add(Context& ctx, const Add& args);

/// y = x between f32, bf16, f16 (and f64 to f32), rounding to nearest even; also copies strided rows.
struct Convert {
  TensorView x, y;  ///< [rows, cols]
};
void convert(Context& ctx, const Convert& args);

struct Fill {
  TensorView y;  ///< f32 | bf16 | f16, or u8: value is then a whole number of 0 to 255
  float value = 0;
};
void fill(Context& ctx, const Fill& args);

/// Element i becomes mean 0, deviation `deviation`, from random.normal(first + i): independent of threads and of how a
/// tensor is cut into pieces.
struct FillNormal {
  TensorView y;  ///< contiguous f32 | bf16 | f16
  RandomStream random;
  uint64_t first = 0;
  float deviation = 1;
};
void fill_normal(Context& ctx, const FillNormal& args);

}  // namespace yoke
