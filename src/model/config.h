// What decides a model's mathematics: one set of fields for all supported architectures.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace yoke {

enum class Architecture {
  llama,    ///< LlamaForCausalLM (1, 2, 3, 3.1, 3.2)
  mistral,  ///< MistralForCausalLM
  qwen2,    ///< Qwen2ForCausalLM
  qwen3,    ///< Qwen3ForCausalLM
};

/// Rotary position scaling, as Hugging Face's `rope_scaling` names it.
struct RopeScaling {
  enum class Kind { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  double low_frequency_factor = 1;     ///< llama3 only
  double high_frequency_factor = 4;    ///< llama3 only
  int64_t original_max_positions = 0;  ///< llama3 only
};

/// Place of a rank on the tensor axis.
struct TensorShard {
  int rank = 0;
  int size = 1;
  bool operator==(const TensorShard&) const = default;
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;     ///< query heads
  int64_t kv_heads = 0;  ///< divides heads
  int64_t head_dim = 0;  ///< even; heads * head_dim need not be hidden
  int64_t mlp = 0;       ///< size of gate and up
  int64_t max_positions = 0;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;             ///< RMSNorm over head_dim of every query and key head, before the rotation
  int64_t sliding_window = 0;       ///< a token sees this many tokens, itself included; 0: all
  int64_t first_sliding_layer = 0;  ///< layers below it see all
  double initializer_range = 0.02;
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;  ///< empty: the file names none

  int64_t q_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  /// Window of a layer, 0 for none.
  int64_t window(int64_t layer) const { return layer >= first_sliding_layer ? sliding_window : 0; }

  /// Ids of the vocabulary, rounded up so that they split evenly over this many ranks.
  int64_t padded_vocabulary(int size) const { return (vocabulary + size - 1) / size * size; }
  /// What one tensor-parallel rank computes with: its share of heads, kv heads, mlp and padded vocabulary. Sizes have
  /// been checked.
  ModelConfig local(const TensorShard& shard) const;

  /// V*h*(1 + untied) + L*(2hnd + 2hkd + 3hf + 2h) + h, plus (n+2k)d a layer for QKV bias, 2d for QK-norm. UserError
  /// when it overflows.
  int64_t parameters() const;
  /// Parameters that take part in matrix products: all but the untied embedding.
  int64_t product_parameters() const;
  /// FLOPs of one training token at this sequence length, attention counted as causal: 6(P-E) + 6*L*s*n*d.
  double training_flops_per_token(int64_t sequence_length) const;

  /// UserError that names the field, what was found and what is legal.
  void validate() const;

  friend bool operator==(const ModelConfig&, const ModelConfig&);
};

}  // namespace yoke
