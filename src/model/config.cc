#include "model/config.h"

#include <tuple>

#include "base/tensor.h"

namespace yoke {

namespace {

/// Sums and products of sizes; a UserError instead of an overflow.
int64_t sum(std::initializer_list<int64_t> terms) {
  int64_t total = 0;
  for (const int64_t term : terms) {
    if (__builtin_add_overflow(total, term, &total)) fail_usage("model: the number of parameters exceeds 2^63.");
  }
  return total;
}

int64_t product(int64_t a, int64_t b, const char* what) { return checked_product(a, b, what); }

void require(bool legal, const char* field, int64_t found, const std::string& rule) {
  if (!legal) fail_usage("model config: {} is {}; {}.", field, found, rule);
}

}  // namespace

ModelConfig ModelConfig::local(const TensorShard& shard) const {
  const int size = shard.size;
  YOKE_ASSERT(size > 0 && shard.rank >= 0 && shard.rank < size, "rank {} of {}", shard.rank, size);
  YOKE_ASSERT(heads % size == 0 && kv_heads % size == 0 && mlp % size == 0, "a model on {} tensor ranks", size);
  ModelConfig config = *this;
  config.heads /= size;
  config.kv_heads /= size;
  config.mlp /= size;
  config.vocabulary = padded_vocabulary(size) / size;
  return config;
}

int64_t ModelConfig::parameters() const {
  const int64_t embedding = product(vocabulary, hidden, "vocab_size x hidden_size");
  const int64_t attention = sum({product(hidden, qkv_size(), "hidden_size x the size of queries, keys and values"),
                                 product(q_size(), hidden, "the size of the heads x hidden_size")});
  const int64_t mlp_weights =
      product(3, product(hidden, mlp, "hidden_size x intermediate_size"), "3 x hidden_size x intermediate_size");
  const int64_t block =
      sum({attention, mlp_weights, 2 * hidden, qkv_bias ? qkv_size() : 0, qk_norm ? 2 * head_dim : 0});
  const int64_t blocks = product(layers, block, "num_hidden_layers x the parameters of a layer");
  return sum({embedding, tied_embeddings ? 0 : embedding, blocks, hidden});
}

int64_t ModelConfig::product_parameters() const {
  return parameters() - (tied_embeddings ? 0 : product(vocabulary, hidden, "vocab_size x hidden_size"));
}

double ModelConfig::training_flops_per_token(int64_t sequence_length) const {
  return 6.0 * static_cast<double>(product_parameters()) +
         6.0 * static_cast<double>(layers) * static_cast<double>(sequence_length) * static_cast<double>(q_size());
}

void ModelConfig::validate() const {
  constexpr int64_t kLimit = int64_t{1} << 31;
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocab_size", vocabulary},        {"hidden_size", hidden},
      {"num_hidden_layers", layers},     {"num_attention_heads", heads},
      {"num_key_value_heads", kv_heads}, {"head_dim", head_dim},
      {"intermediate_size", mlp},        {"max_position_embeddings", max_positions}};
  for (const auto& [field, value] : sizes)
    require(value > 0 && value < kLimit, field, value, "legal are 1 to 2^31 - 1");
  require(layers <= 10000, "num_hidden_layers", layers, "legal are 1 to 10000");
  require(heads * head_dim < kLimit, "head_dim", head_dim, "times num_attention_heads it has to stay below 2^31");
  require(heads % kv_heads == 0, "num_key_value_heads", kv_heads,
          fmt::format("it has to divide num_attention_heads ({})", heads));
  require(head_dim % 2 == 0, "head_dim", head_dim, "rotary embeddings need an even size");
  require(sliding_window >= 0 && sliding_window < kLimit, "sliding_window", sliding_window,
          "it has to be positive and below 2^31, or absent");
  if (!(norm_epsilon > 0 && norm_epsilon < 1))
    fail_usage("model config: rms_norm_eps is {}; legal are 0 to 1.", norm_epsilon);
  if (!(rope_theta > 0)) fail_usage("model config: rope_theta is {}; it has to be positive.", rope_theta);
  if (!(initializer_range >= 0)) {
    fail_usage("model config: initializer_range is {}; it has to be 0 or more.", initializer_range);
  }
  if (rope_scaling.kind != RopeScaling::Kind::none && !(rope_scaling.factor >= 1)) {
    fail_usage("model config: rope_scaling.factor is {}; it has to be 1 or more.", rope_scaling.factor);
  }
  if (rope_scaling.kind == RopeScaling::Kind::llama3) {
    const RopeScaling& r = rope_scaling;
    if (!(r.low_frequency_factor > 0 && r.high_frequency_factor > r.low_frequency_factor)) {
      fail_usage("model config: rope_scaling.low_freq_factor is {} and high_freq_factor {}; legal is 0 < low < high.",
                 r.low_frequency_factor, r.high_frequency_factor);
    }
    require(r.original_max_positions > 0 && r.original_max_positions < kLimit,
            "rope_scaling.original_max_position_embeddings", r.original_max_positions, "legal are 1 to 2^31 - 1");
  }
  parameters();
}

bool operator==(const ModelConfig& a, const ModelConfig& b) {
  const auto key = [](const ModelConfig& c) {
    const RopeScaling& r = c.rope_scaling;
    return std::tuple(c.architecture, c.vocabulary, c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.mlp,
                      c.max_positions, c.norm_epsilon, c.rope_theta, r.kind, r.factor, r.low_frequency_factor,
                      r.high_frequency_factor, r.original_max_positions, c.tied_embeddings, c.qkv_bias, c.qk_norm,
                      c.sliding_window, c.first_sliding_layer, c.initializer_range, c.bos, c.eos);
  };
  return key(a) == key(b);
}

}  // namespace yoke
