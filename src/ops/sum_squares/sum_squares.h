// Sum of squares in fp64, for gradient norms. The same bits whatever the number of threads. Infinities and NaN show in
// the result.
#pragma once

#include "device/context.h"

namespace yoke {

struct SumSquares {
  TensorView x;  ///< f32 | bf16 | f16, contiguous
  TensorView y;  ///< [1] f64
  bool accumulate = false;
};

/// Workspace: one fp64 for each 64 Ki elements.
void sum_squares(Context& ctx, const SumSquares& args);

}  // namespace yoke
