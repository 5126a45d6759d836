// Token embedding: y[t] = table[tokens[t]].
#pragma once

#include "device/context.h"

namespace yoke {

struct EmbeddingForward {
  TensorView tokens;  ///< [tokens] i32, each in [0, vocabulary); the caller has checked them
  TensorView table;   ///< [vocabulary, hidden] f32 | bf16 | f16
  TensorView y;       ///< [tokens, hidden], dtype of table
};

/// dtable[tokens[t]] += dy[t], summed in fp32 in order of t whatever the number of threads; a bf16 table is rounded
/// once a row. Workspace: one i32 a token with a bf16 table.
struct EmbeddingBackward {
  TensorView tokens;        ///< [tokens] i32
  TensorView dy;            ///< [tokens, hidden]
  TensorView dtable;        ///< [vocabulary, hidden] f32 | bf16
  bool accumulate = false;  ///< false: rows that no token names become zero
};

void embedding_forward(Context& ctx, const EmbeddingForward& args);
void embedding_backward(Context& ctx, const EmbeddingBackward& args);

}  // namespace yoke
