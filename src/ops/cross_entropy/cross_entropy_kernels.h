#pragma once

#include "ops/cross_entropy/cross_entropy.h"

namespace yoke {

YOKE_KERNELS(cross_entropy, CrossEntropy);
YOKE_KERNELS(cross_entropy_sums, CrossEntropySums);
YOKE_KERNELS(cross_entropy_shard, CrossEntropyShard);

}  // namespace yoke
