#include "model/activations.h"

namespace yoke {

MemoryKind kind_of(Fate fate) {
  return fate == Fate::saved        ? MemoryKind::saved
         : fate == Fate::recomputed ? MemoryKind::recomputed
                                    : MemoryKind::scratch;
}

ActivationTable::ActivationTable(const ModelConfig& c, DType compute, Recompute recompute, int tensor_size)
    : tensor_size_(tensor_size) {
  using A = BlockActivations;
  const auto kept_below = [&](Recompute level) { return recompute < level ? Fate::saved : Fate::recomputed; };
  const Fate norms = kept_below(Recompute::norms);
  const Fate block = kept_below(Recompute::block);
  const Fate mlp = recompute == Recompute::mlp || recompute == Recompute::block ? Fate::recomputed : Fate::saved;
  const Fate attention = kept_below(Recompute::attention);
  rows_ = {
      {"input", &A::input, compute, c.hidden, Fate::saved, BlockPart::attention, true},
      {"input_rstd", &A::input_rstd, DType::f32, 1, block, BlockPart::attention, true},
      {"input_norm", &A::input_norm, compute, c.hidden, norms, BlockPart::attention, true},
      {"qkv", &A::qkv, compute, c.qkv_size(), attention, BlockPart::attention},
      {"attention", &A::attention, compute, c.q_size(), attention, BlockPart::attention},
      {"lse", &A::lse, DType::f32, c.heads, attention, BlockPart::attention},
      {"mid", &A::mid, compute, c.hidden, block, BlockPart::mlp, true},
      {"mid_rstd", &A::mid_rstd, DType::f32, 1, block, BlockPart::mlp, true},
      {"mid_norm", &A::mid_norm, compute, c.hidden, norms, BlockPart::mlp, true},
      {"gate_up", &A::gate_up, compute, 2 * c.mlp, mlp, BlockPart::mlp},
      {"product", &A::product, compute, c.mlp, norms, BlockPart::mlp},
      {"delta", &A::delta, compute, c.hidden, Fate::scratch, BlockPart::mlp, true},
  };
  if (c.qk_norm) {
    rows_.push_back({"q_rstd", &A::q_rstd, DType::f32, c.heads, attention, BlockPart::attention});
    rows_.push_back({"k_rstd", &A::k_rstd, DType::f32, c.kv_heads, attention, BlockPart::attention});
    rows_.push_back({"qk", &A::qk, compute, c.q_size() + c.kv_size(), attention, BlockPart::attention});
  }
}

Fate ActivationTable::fate(TensorView BlockActivations::*tensor) const {
  for (const ActivationRow& row : rows_) {
    if (row.tensor == tensor) return row.fate;
  }
  return Fate::scratch;
}

double ActivationTable::saved_bytes_per_token() const {
  double bytes = 0;
  for (const ActivationRow& row : rows_) {
    const double size = static_cast<double>(row.cols) * static_cast<double>(size_of(row.dtype));
    if (row.fate == Fate::saved) bytes += row.sliced ? size / static_cast<double>(tensor_size_) : size;
  }
  return bytes;
}

void ActivationTable::allocate(Arena& arena, Fate fate, int64_t tokens, BlockActivations& into, MemoryKind kind,
                               std::optional<BlockPart> part) const {
  YOKE_ASSERT(tokens % tensor_size_ == 0, "{} tokens in {} slices", tokens, tensor_size_);
  for (const ActivationRow& row : rows_) {
    if (row.fate != fate || part.value_or(row.part) != row.part) continue;
    const int64_t rows = row.sliced ? tokens / tensor_size_ : tokens;
    into.*row.tensor = arena.allocate(row.name, row.dtype, {rows, row.cols}, kind);
  }
}

void ActivationTable::share(const BlockActivations& shared, BlockActivations& into) const {
  for (const ActivationRow& row : rows_) {
    if (row.fate != Fate::saved) into.*row.tensor = shared.*row.tensor;
  }
}

}  // namespace yoke
