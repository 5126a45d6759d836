#pragma once

#include "ops/rmsnorm/rmsnorm.h"

namespace yoke {

struct RmsNormBackwardKernel : RmsNormBackward {
  TensorView partial;  // [threads, cols] f32: each thread's share of dweight
};

YOKE_KERNELS(rms_norm_forward, RmsNormForward);
YOKE_KERNELS(rms_norm_backward, RmsNormBackwardKernel);

}  // namespace yoke
