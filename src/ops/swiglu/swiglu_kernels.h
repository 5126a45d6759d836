#pragma once

#include "ops/swiglu/swiglu.h"

namespace yoke {

YOKE_KERNELS(swiglu_forward, SwigluForward);
YOKE_KERNELS(swiglu_backward, SwigluBackward);

}  // namespace yoke
