#pragma once

#include "ops/rope/rope.h"

namespace yoke {

YOKE_KERNELS(rope, Rope);

}  // namespace yoke
