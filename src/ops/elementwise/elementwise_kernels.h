#pragma once

#include "ops/elementwise/elementwise.h"

namespace yoke {

YOKE_KERNELS(add, Add);
YOKE_KERNELS(convert, Convert);
YOKE_KERNELS(fill, Fill);
YOKE_KERNELS(fill_normal, FillNormal);

}  // namespace yoke
