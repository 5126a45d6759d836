// The activation table of a block: one row a tensor between its operations, and what becomes of it between forward and
// backward. Allocation, recomputation and the planner read this table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device/context.h"
#include "model/config.h"

namespace yoke {

/// How much of a block is computed again in backward rather than kept.
enum class Recompute {
  none,
  norms,      ///< norm outputs and the SwiGLU product
  mlp,        ///< gate and up too
  attention,  ///< all of `norms`, and q, k, v and the attention's output
  block,      ///< everything but the block's input
};

enum class Fate {
  saved,       ///< written in forward, read in backward
  recomputed,  ///< written in forward and again in backward
  scratch,     ///< not needed in backward
};

/// As plans call memory of this fate.
MemoryKind kind_of(Fate fate);

/// Tensors of one block, shape [tokens, ...]. T: tokens, S: those of this rank's slice (model/tensor_parallel.h), h:
/// hidden, and of this rank n: heads, k: kv heads, d: head size, f: MLP size.
struct BlockActivations {
  TensorView input;       ///< [S, h] residual stream at the block's entry
  TensorView input_rstd;  ///< [S] f32
  TensorView input_norm;  ///< [S, h]
  TensorView qkv;         ///< [T, (n + 2k) d]; q and k rotated in place unless there is a QK-norm
  TensorView q_rstd;      ///< [T, n] f32, QK-norm only
  TensorView k_rstd;      ///< [T, k] f32, QK-norm only
  TensorView qk;          ///< [T, (n + k) d] normalised and rotated, QK-norm only
  TensorView attention;   ///< [T, n d]
  TensorView lse;         ///< [T, n] f32
  TensorView mid;         ///< [S, h] residual stream between attention and MLP
  TensorView mid_rstd;    ///< [S] f32
  TensorView mid_norm;    ///< [S, h]
  TensorView gate_up;     ///< [T, 2 f]
  TensorView product;     ///< [T, f] silu(gate) * up
  TensorView delta;       ///< [S, h] what attention, then the MLP, adds to the residual stream
};

/// Which half of a block's backward reads a tensor last: what only the MLP's half needs is free before the other.
enum class BlockPart { attention, mlp };

struct ActivationRow {
  const char* name;
  TensorView BlockActivations::*tensor;
  DType dtype;
  int64_t cols;
  Fate fate;
  BlockPart part;
  bool sliced = false;  ///< only the tokens of this rank's slice
};

class ActivationTable {
 public:
  /// `config`: with the sizes of one of `tensor_size` tensor-parallel ranks.
  ActivationTable(const ModelConfig& config, DType compute, Recompute recompute, int tensor_size = 1);

  const std::vector<ActivationRow>& rows() const { return rows_; }
  Fate fate(TensorView BlockActivations::*tensor) const;
  /// Bytes kept between forward and backward, per layer and token.
  double saved_bytes_per_token() const;
  /// Points the rows of this fate, of both parts of a block or of one, at fresh memory of that kind. `tokens`: of all
  /// ranks.
  void allocate(Arena& arena, Fate fate, int64_t tokens, BlockActivations& into, MemoryKind kind,
                std::optional<BlockPart> part = {}) const;
  void allocate(Arena& arena, Fate fate, int64_t tokens, BlockActivations& into,
                std::optional<BlockPart> part = {}) const {
    allocate(arena, fate, tokens, into, kind_of(fate), part);
  }
  /// Points all rows that are not saved at what `shared` has for them: blocks take turns in that memory.
  void share(const BlockActivations& shared, BlockActivations& into) const;

 private:
  std::vector<ActivationRow> rows_;
  int64_t tensor_size_;
};

}  // namespace yoke
