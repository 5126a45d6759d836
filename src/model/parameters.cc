#include "model/parameters.h"

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

ParameterRow matrix(std::string name, Kind kind, int64_t cols, std::vector<std::pair<std::string, int64_t>> parts) {
  ParameterRow row{.name = std::move(name), .kind = kind};
  int64_t rows = 0;
  for (auto& [part, count] : parts) {
    row.parts.push_back({part, rows, count});
    rows += count;
  }
  row.shape = {rows, cols};
  return row;
}

ParameterRow vector(std::string name, Kind kind, Init init, std::vector<std::pair<std::string, int64_t>> parts) {
  ParameterRow row = matrix(std::move(name), kind, 1, std::move(parts));
  row.shape = {row.shape[0]};
  row.init = init;
  return row;
}

}  // namespace

ParameterTable::ParameterTable(const ModelConfig& c) {
  const BlockRows block(c);
  rows_per_layer_ = static_cast<size_t>(block.count);
  rows_.push_back(matrix("embedding", Kind::embedding, c.hidden, {{"model.embed_tokens.weight", c.vocabulary}}));
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string hf = fmt::format("model.layers.{}.", l), name = fmt::format("layers.{}.", l);
    const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
    const size_t first = rows_.size();
    rows_.push_back(vector(name + "input_norm", Kind::norm, Init::ones, {{hf + "input_layernorm.weight", c.hidden}}));
    rows_.push_back(matrix(name + "attention.qkv", Kind::matrix, c.hidden,
                           {{attention + "q_proj.weight", c.q_size()},
                            {attention + "k_proj.weight", c.kv_size()},
                            {attention + "v_proj.weight", c.kv_size()}}));
    if (c.qkv_bias) {
      rows_.push_back(vector(name + "attention.qkv_bias", Kind::bias, Init::zeros,
                             {{attention + "q_proj.bias", c.q_size()},
                              {attention + "k_proj.bias", c.kv_size()},
                              {attention + "v_proj.bias", c.kv_size()}}));
    }
    if (c.qk_norm) {
      rows_.push_back(
          vector(name + "attention.q_norm", Kind::norm, Init::ones, {{attention + "q_norm.weight", c.head_dim}}));
      rows_.push_back(
          vector(name + "attention.k_norm", Kind::norm, Init::ones, {{attention + "k_norm.weight", c.head_dim}}));
    }
    rows_.push_back(
        matrix(name + "attention.output", Kind::matrix, c.q_size(), {{attention + "o_proj.weight", c.hidden}}));
    rows_.push_back(
        vector(name + "post_norm", Kind::norm, Init::ones, {{hf + "post_attention_layernorm.weight", c.hidden}}));
    rows_.push_back(matrix(name + "mlp.gate_up", Kind::matrix, c.hidden,
                           {{mlp + "gate_proj.weight", c.mlp}, {mlp + "up_proj.weight", c.mlp}}));
    rows_.push_back(matrix(name + "mlp.down", Kind::matrix, c.mlp, {{mlp + "down_proj.weight", c.hidden}}));
    YOKE_ASSERT(rows_.size() - first == rows_per_layer_);
    for (size_t i = first; i < rows_.size(); ++i) rows_[i].layer = l;
  }
  final_norm_ = rows_.size();
  rows_.push_back(vector("final_norm", Kind::norm, Init::ones, {{"model.norm.weight", c.hidden}}));
  head_ = embedding();
  if (!c.tied_embeddings) {
    head_ = rows_.size();
    rows_.push_back(matrix("head", Kind::head, c.hidden, {{"lm_head.weight", c.vocabulary}}));
  }
}

int64_t ParameterTable::elements() const {
  int64_t sum = 0;
  for (const ParameterRow& row : rows_) sum += row.shape.elements();
  return sum;
}

}  // namespace yoke
