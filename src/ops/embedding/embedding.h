// Token embedding: y[t] = table[tokens[t] - first], and 0 for tokens that the table has no row of: of a table that is
// cut into ranges of rows, every piece makes its part of the sum.
#pragma once

#include "device/context.h"

namespace yoke {

struct EmbeddingForward {
  TensorView tokens;  ///< [tokens] i32
  TensorView table;   ///< [rows, hidden] f32 | bf16 | f16
  TensorView y;       ///< [tokens, hidden], dtype of table
  int64_t first = 0;  ///< the token of row 0
};

/// dtable[tokens[t] - first] += dy[t] where there is such a row, summed in fp32 in order of t whatever the number of
/// threads; a bf16 table is rounded once a row. Workspace: one i32 a token with a bf16 table.
struct EmbeddingBackward {
  TensorView tokens;        ///< [tokens] i32
  TensorView dy;            ///< [tokens, hidden]
  TensorView dtable;        ///< [rows, hidden] f32 | bf16
  bool accumulate = false;  ///< false: rows that no token names become zero
  int64_t first = 0;        ///< the token of row 0
};

void embedding_forward(Context& ctx, const EmbeddingForward& args);
void embedding_backward(Context& ctx, const EmbeddingBackward& args);

}  // namespace yoke
