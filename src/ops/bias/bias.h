// Gradient of a bias that a product added to every row: dbias[j] = sum over rows of dy[i, j]. The forward addition is
// part of matmul.
#pragma once

#include "device/context.h"

namespace yoke {

struct BiasBackward {
  TensorView dy;     ///< [rows, cols] f32 | bf16 | f16
  TensorView dbias;  ///< [cols] f32
  bool accumulate = false;
};

/// Workspace: threads x cols fp32.
void bias_backward(Context& ctx, const BiasBackward& args);

}  // namespace yoke
