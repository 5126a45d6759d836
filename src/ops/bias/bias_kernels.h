#pragma once

#include "ops/bias/bias.h"

namespace yoke {

struct BiasBackwardKernel : BiasBackward {
  TensorView partial;  // [threads, cols] f32: each thread's share of dbias
};

YOKE_KERNELS(bias_backward, BiasBackwardKernel);

}  // namespace yoke
