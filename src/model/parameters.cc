#include "model/parameters.h"

#include <algorithm>

namespace yoke {

BlockRows::BlockRows(const ModelConfig& config) {
  int next = 0;
  input_norm = next++;
  qkv = next++;
  qkv_bias = config.qkv_bias ? next++ : -1;
  q_norm = config.qk_norm ? next++ : -1;
  k_norm = config.qk_norm ? next++ : -1;
  output = next++;
  post_norm = next++;
  gate_up = next++;
  down = next++;
  count = next;
}

namespace {

using Kind = ParameterRow::Kind;
using Init = ParameterRow::Init;

using Split = ParameterRow::Split;
using Parts = std::vector<std::pair<std::string, int64_t>>;  // name and rows of the whole model's

/// Makes rows of one rank.
class RowMaker {
 public:
  explicit RowMaker(const TensorShard& shard) : shard_(shard) {}

  ParameterRow matrix(std::string name, Kind kind, Split split, int64_t cols, const Parts& parts) const {
    ParameterRow row = rows_of(std::move(name), kind, split, parts);
    const int64_t here = split == Split::cols ? cols / shard_.size : cols;
    row.shape = {local_rows(row, parts), here};
    row.whole = {row.whole[0], cols};
    row.first_col = split == Split::cols ? here * shard_.rank : 0;
    return row;
  }

  ParameterRow vector(std::string name, Kind kind, Init init, Split split, const Parts& parts) const {
    ParameterRow row = rows_of(std::move(name), kind, split, parts);
    row.shape = {local_rows(row, parts)};
    row.init = init;
    // Norms see the tokens, or the heads, of their own rank.
    row.partial_over_tensor = kind == Kind::norm && shard_.size > 1;
    return row;
  }

 private:
  /// Rows of a tensor of `rows` rows that a rank has, padding included.
  int64_t share(Split split, int64_t rows) const {
    return split == Split::rows ? (rows + shard_.size - 1) / shard_.size : rows;
  }
  int64_t local_rows(const ParameterRow& row, const Parts& parts) const {
    int64_t sum = 0;
    for (const auto& [name, count] : parts) sum += share(row.split, count);
    return sum;
  }

  ParameterRow rows_of(std::string name, Kind kind, Split split, const Parts& parts) const {
    ParameterRow row{.name = std::move(name), .kind = kind, .split = split};
    int64_t here = 0, whole = 0;
    for (const auto& [part, count] : parts) {
      const int64_t size = share(split, count), first = split == Split::rows ? size * shard_.rank : 0;
      YOKE_ASSERT(parts.size() == 1 || size * shard_.size == count || split != Split::rows, "{} needs padding", part);
      const int64_t begin = std::min(first, count), rows = std::min(size, count - begin);
      row.parts.push_back({part, here, rows, begin, count, whole + begin});
      here += size;
      whole += count;
    }
    row.whole = {whole};
    return row;
  }

  TensorShard shard_;
};

}  // namespace

ParameterTable::ParameterTable(const ModelConfig& c, const ModelPart& part)
    : layers_(static_cast<size_t>(c.layers), kAbsent) {
  const RowMaker make(part.tensor);
  const std::vector<ModelPiece> pieces = part.pieces_of(c.layers);
  const bool embeds = pieces.front().embeds, ends = pieces.back().ends;
  if (embeds || (ends && c.tied_embeddings)) {
    embedding_ = rows_.size();
    rows_.push_back(make.matrix("embedding", Kind::embedding, Split::rows, c.hidden,
                                {{"model.embed_tokens.weight", c.vocabulary}}));
    rows_.back().copy = !embeds;
  }
  for (const ModelPiece& piece : pieces) {
    for (int64_t l = piece.first_layer; l < piece.first_layer + piece.layers; ++l) add_layer(c, part.tensor, l);
  }
  if (!ends) return;
  final_norm_ = rows_.size();
  rows_.push_back(make.vector("final_norm", Kind::norm, Init::ones, Split::none, {{"model.norm.weight", c.hidden}}));
  rows_.back().id = 1 + static_cast<size_t>(c.layers * BlockRows(c).count);
  head_ = embedding_;
  if (c.tied_embeddings) return;
  head_ = rows_.size();
  rows_.push_back(make.matrix("head", Kind::head, Split::rows, c.hidden, {{"lm_head.weight", c.vocabulary}}));
  rows_.back().id = rows_[final_norm_].id + 1;
}

void ParameterTable::add_layer(const ModelConfig& c, const TensorShard& shard, int64_t layer) {
  const RowMaker make(shard);
  const std::string hf = fmt::format("model.layers.{}.", layer), name = fmt::format("layers.{}.", layer);
  const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
  const size_t first = rows_.size();
  const auto norm = [&](const std::string& row, const std::string& weight, int64_t size) {
    rows_.push_back(make.vector(name + row, Kind::norm, Init::ones, Split::none, {{weight, size}}));
  };
  norm("input_norm", hf + "input_layernorm.weight", c.hidden);
  rows_.push_back(make.matrix(name + "attention.qkv", Kind::matrix, Split::rows, c.hidden,
                              {{attention + "q_proj.weight", c.q_size()},
                               {attention + "k_proj.weight", c.kv_size()},
                               {attention + "v_proj.weight", c.kv_size()}}));
  if (c.qkv_bias) {
    rows_.push_back(make.vector(name + "attention.qkv_bias", Kind::bias, Init::zeros, Split::rows,
                                {{attention + "q_proj.bias", c.q_size()},
                                 {attention + "k_proj.bias", c.kv_size()},
                                 {attention + "v_proj.bias", c.kv_size()}}));
  }
  if (c.qk_norm) {
    norm("attention.q_norm", attention + "q_norm.weight", c.head_dim);
    norm("attention.k_norm", attention + "k_norm.weight", c.head_dim);
  }
  rows_.push_back(make.matrix(name + "attention.output", Kind::matrix, Split::cols, c.q_size(),
                              {{attention + "o_proj.weight", c.hidden}}));
  norm("post_norm", hf + "post_attention_layernorm.weight", c.hidden);
  rows_.push_back(make.matrix(name + "mlp.gate_up", Kind::matrix, Split::rows, c.hidden,
                              {{mlp + "gate_proj.weight", c.mlp}, {mlp + "up_proj.weight", c.mlp}}));
  rows_.push_back(
      make.matrix(name + "mlp.down", Kind::matrix, Split::cols, c.mlp, {{mlp + "down_proj.weight", c.hidden}}));
  const auto count = static_cast<size_t>(BlockRows(c).count);
  YOKE_ASSERT(rows_.size() - first == count);
  for (size_t i = first; i < rows_.size(); ++i) {
    rows_[i].layer = layer;
    rows_[i].id = 1 + static_cast<size_t>(layer) * count + i - first;
  }
  layers_[static_cast<size_t>(layer)] = first;
}

int64_t ParameterTable::elements() const {
  int64_t sum = 0;
  for (const ParameterRow& row : rows_) sum += row.shape.elements();
  return sum;
}

}  // namespace yoke
