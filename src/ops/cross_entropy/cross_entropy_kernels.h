#pragma once

#include "ops/cross_entropy/cross_entropy.h"

namespace yoke {

YOKE_KERNELS(cross_entropy, CrossEntropy);

}  // namespace yoke
