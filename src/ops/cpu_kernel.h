// What CPU kernels share. Included only by `*_cpu.cc` files, which are compiled once for each instruction set into the
// namespace YOKE_ISA. Everything here has internal linkage: a function that the linker could merge across instruction
// sets would crash on older processors (scripts/check_isa.py looks for such symbols).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "device/context.h"

#ifndef YOKE_ISA
#error "*_cpu.cc files are compiled through yoke_add_isa_sources (cmake/isa.cmake)"
#endif

namespace yoke::YOKE_ISA {

/// sums[i] (+)= the parts' partials [parts, cols], always in the order of the parts: which thread made which doesn't
/// show in the result.
static inline void add_partials(const float* partials, int64_t parts, int64_t cols, bool accumulate, float* sums) {
  for (int64_t i = 0; i < cols; ++i) {
    float sum = accumulate ? sums[i] : 0.0f;
    for (int64_t part = 0; part < parts; ++part) sum += partials[part * cols + i];
    sums[i] = sum;
  }
}

}  // namespace yoke::YOKE_ISA

// Runs `...` with T bound to the element type.
#define YOKE_FOR_TYPE(dtype, T, ...) \
  switch (dtype) {                   \
    case DType::f32: {               \
      using T = float;               \
      __VA_ARGS__;                   \
      break;                         \
    }                                \
    case DType::bf16: {              \
      using T = bf16;                \
      __VA_ARGS__;                   \
      break;                         \
    }                                \
    default: {                       \
      using T = f16;                 \
      __VA_ARGS__;                   \
      break;                         \
    }                                \
  }
