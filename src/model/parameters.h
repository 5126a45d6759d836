// The parameter table: one row a weight tensor, in the order in which a forward pass meets them.
#pragma once

#include <string>
#include <vector>

#include "base/tensor.h"
#include "model/config.h"

namespace yoke {

/// Consecutive layers that a rank computes in one go: a virtual pipeline stage.
struct ModelPiece {
  int64_t first_layer = 0;
  int64_t layers = 0;
  bool embeds = true;  ///< begins with the embedding
  bool ends = true;    ///< ends with final norm and head
};

/// The part of a model that a rank holds; by default all of it.
struct ModelPart {
  TensorShard tensor;
  std::vector<ModelPiece> pieces;  ///< in order; empty: one of all layers

  /// What `pieces` means for a model of so many layers.
  std::vector<ModelPiece> pieces_of(int64_t layers) const {
    return pieces.empty() ? std::vector<ModelPiece>{{.layers = layers}} : pieces;
  }
};

/// A range of rows of a fused tensor that model files know under a name of its own: as much of it as this rank has.
struct ParameterPart {
  std::string name;  ///< Hugging Face name: "model.layers.0.self_attn.q_proj.weight"
  int64_t row = 0;   ///< first row here
  int64_t rows = 0;
  int64_t file_row = 0;   ///< the same row in the tensor of that name
  int64_t file_rows = 0;  ///< rows of that tensor
  int64_t whole_row = 0;  ///< the same row in the whole model's fused tensor
};

/// A tensor of this rank and where it lies in the whole model's: rows by its parts, columns
/// [first_col, first_col + shape.cols()).
struct ParameterRow {
  enum class Kind { embedding, matrix, bias, norm, head };
  enum class Init { normal, ones, zeros };
  /// How the tensor axis holds it.
  enum class Split {
    none,  ///< every rank has all of it
    rows,  ///< each part's rows are divided, those of the vocabulary after padding
    cols,
  };

  std::string name;  ///< "layers.0.attention.qkv"
  Kind kind = Kind::matrix;
  Shape shape;                       ///< [rows, cols] or [size], of this rank
  std::vector<ParameterPart> parts;  ///< in order, from row 0; a 1-D tensor's elements count as its rows
  Init init = Init::normal;          ///< normal: mean 0, deviation initializer_range
  int64_t layer = -1;                ///< -1 outside the blocks
  size_t id = 0;                     ///< number in the table of the whole model: names its random numbers
  Split split = Split::none;
  Shape whole;            ///< of the whole model's tensor, without padding
  int64_t first_col = 0;  ///< where this rank's columns begin in it
  /// Each tensor-parallel rank's gradient is of its own tokens or heads only: they have to be added over the tensor
  /// axis, once a step. Other gradients are complete as they are.
  bool partial_over_tensor = false;
  /// The last pipeline stage's copy of the first one's tied embedding. Sums over all parameters leave it out.
  bool copy = false;

  /// Decoupled weight decay applies to matrices, embedding and head, not to norms and biases.
  bool decays() const { return kind != Kind::bias && kind != Kind::norm; }
  /// Rows behind the last part belong to no tensor of the model: zero weights that stay zero.
  int64_t pad_rows() const { return parts.empty() ? 0 : shape_rows() - parts.back().row - parts.back().rows; }
  int64_t shape_rows() const { return shape.rank() == 1 ? shape[0] : shape.rows(); }
  int64_t shape_cols() const { return shape.rank() == 1 ? 1 : shape.cols(); }
};

/// Rows of block l are count of BlockRows from first_of_layer(l) on; the embedding is row 0; the final norm and, unless
/// tied, the head come last. What this rank does not hold is missing.
class ParameterTable {
 public:
  /// `config`: of the whole model; sizes have been checked.
  explicit ParameterTable(const ModelConfig& config, const ModelPart& part = {});

  const std::vector<ParameterRow>& rows() const { return rows_; }
  const ParameterRow& operator[](size_t i) const { return rows_[i]; }
  size_t size() const { return rows_.size(); }
  int64_t elements() const;  ///< of this rank; of the whole model: config.parameters()

  static constexpr size_t kAbsent = static_cast<size_t>(-1);
  size_t embedding() const { return embedding_; }
  size_t first_of_layer(int64_t layer) const { return layers_.at(static_cast<size_t>(layer)); }
  size_t final_norm() const { return final_norm_; }
  size_t head() const { return head_; }  ///< the embedding's row when tied

 private:
  void add_layer(const ModelConfig& config, const TensorShard& shard, int64_t layer);

  std::vector<ParameterRow> rows_;
  std::vector<size_t> layers_;  ///< first rows
  size_t embedding_ = kAbsent, final_norm_ = kAbsent, head_ = kAbsent;
};

/// Rows of one block relative to first_of_layer; bias and QK-norm rows are -1 where the model has none.
struct BlockRows {
  int input_norm, qkv, qkv_bias, q_norm, k_norm, output, post_norm, gate_up, down;
  explicit BlockRows(const ModelConfig& config);
  int count;
};

}  // namespace yoke
