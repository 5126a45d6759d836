// Floating-point elements from one type to another, from bytes that need not be aligned.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace yoke {

/// `count` elements of `from_type` at `from` to `to_type` at `to`, rounding to nearest even. Equal types are copied bit
/// for bit, and then need not be floats.
void convert_elements(const void* from, DType from_type, void* to, DType to_type, int64_t count);

}  // namespace yoke
