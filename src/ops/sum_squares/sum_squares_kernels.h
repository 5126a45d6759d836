#pragma once

#include "ops/sum_squares/sum_squares.h"

namespace yoke {

struct SumSquaresKernel : SumSquares {
  static constexpr int64_t kChunk = 1 << 16;
  TensorView partial;  // [chunks] f64
};

YOKE_KERNELS(sum_squares, SumSquaresKernel);

}  // namespace yoke
