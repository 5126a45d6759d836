#pragma once

#include "ops/adamw/adamw.h"

namespace yoke {

struct AdamWKernel : AdamW {
  float unbias_m = 1, unbias_v = 1;  // 1 / (1 - beta^step)
  const DynamicMap* m_map = nullptr;
  const DynamicMap* v_map = nullptr;
};

YOKE_KERNELS(adamw, AdamWKernel);

}  // namespace yoke
