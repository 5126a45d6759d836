#pragma once

#include "ops/adamw/adamw.h"

namespace yoke {

struct AdamWKernel : AdamW {
  float unbias_m = 1, unbias_v = 1;  // 1 / (1 - beta^step)
};

YOKE_KERNELS(adamw, AdamWKernel);

}  // namespace yoke
