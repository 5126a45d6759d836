#pragma once

#include "ops/embedding/embedding.h"

namespace yoke {

YOKE_KERNELS(embedding_forward, EmbeddingForward);
struct EmbeddingBackwardKernel : EmbeddingBackward {
  TensorView order;  // [tokens] i32, with a bf16 table
};

YOKE_KERNELS(embedding_backward, EmbeddingBackwardKernel);

}  // namespace yoke
