#pragma once

#include "ops/embedding/embedding.h"

namespace yoke {

YOKE_KERNELS(embedding_forward, EmbeddingForward);
YOKE_KERNELS(embedding_backward, EmbeddingBackward);

}  // namespace yoke
