#pragma once

#include "ops/matmul/matmul.h"

namespace yoke {

struct MatmulKernel : Matmul {
  TensorView workspace;  // [matmul_workspace(...)] u8
};

YOKE_LIBRARY_KERNEL(matmul, MatmulKernel);

/// Bytes that the library wants for this product. Needs shapes only.
size_t matmul_workspace(Context& ctx, const Matmul& args);

}  // namespace yoke
