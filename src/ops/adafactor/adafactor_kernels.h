#pragma once

#include "ops/adafactor/adafactor.h"

namespace yoke {

struct AdafactorKernel : Adafactor {
  float beta = 0;
  TensorView sums;  // [rows] f64
};

YOKE_KERNELS(adafactor, AdafactorKernel);

}  // namespace yoke
