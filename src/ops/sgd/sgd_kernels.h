#pragma once

#include "ops/sgd/sgd.h"

namespace yoke {

struct SgdKernel : Sgd {
  const DynamicMap* map = nullptr;
};

YOKE_KERNELS(sgd, SgdKernel);

}  // namespace yoke
