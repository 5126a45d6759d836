// The parameter table: one row a weight tensor, in the order in which a forward pass meets them.
#pragma once

#include <string>
#include <vector>

#include "base/tensor.h"
#include "model/config.h"

namespace yoke {

/// A range of rows of a fused tensor that model files know under a name of its own.
struct ParameterPart {
  std::string name;  ///< Hugging Face name: "model.layers.0.self_attn.q_proj.weight"
  int64_t row = 0;
  int64_t rows = 0;
};

struct ParameterRow {
  enum class Kind { embedding, matrix, bias, norm, head };
  enum class Init { normal, ones, zeros };

  std::string name;  ///< "layers.0.attention.qkv"
  Kind kind = Kind::matrix;
  Shape shape;                       ///< [rows, cols] or [size]
  std::vector<ParameterPart> parts;  ///< cover all rows in order; a 1-D tensor's elements count as its rows
  Init init = Init::normal;          ///< normal: mean 0, deviation initializer_range
  int64_t layer = -1;                ///< -1 outside the blocks

  /// Decoupled weight decay applies to matrices, embedding and head, not to norms and biases.
  bool decays() const { return kind != Kind::bias && kind != Kind::norm; }
};

/// Rows of block l are [first_of_layer(l), first_of_layer(l + 1)); the embedding is row 0; the final norm and, unless
/// tied, the head come last.
class ParameterTable {
 public:
  explicit ParameterTable(const ModelConfig& config);

  const std::vector<ParameterRow>& rows() const { return rows_; }
  const ParameterRow& operator[](size_t i) const { return rows_[i]; }
  size_t size() const { return rows_.size(); }
  int64_t elements() const;  ///< equals config.parameters()

  size_t embedding() const { return 0; }
  size_t first_of_layer(int64_t layer) const { return 1 + static_cast<size_t>(layer) * rows_per_layer_; }
  size_t final_norm() const { return final_norm_; }
  size_t head() const { return head_; }  ///< the embedding's row when tied

 private:
  std::vector<ParameterRow> rows_;
  size_t rows_per_layer_ = 0;
  size_t final_norm_ = 0;
  size_t head_ = 0;
};

/// Rows of one block relative to first_of_layer; bias and QK-norm rows are -1 where the model has none.
struct BlockRows {
  int input_norm, qkv, qkv_bias, q_norm, k_norm, output, post_norm, gate_up, down;
  explicit BlockRows(const ModelConfig& config);
  int count;
};

}  // namespace yoke
