// Models whose plans are compared with figures.
#pragma once

#include "tests/train/support.h"

namespace yoke::test {

/// What Hugging Face's config.json says of a Llama 3 model of these sizes.
inline nlohmann::json llama3(int64_t hidden, int64_t layers, int64_t heads, int64_t mlp) {
  return tiny_config("Llama", {{"vocab_size", 128256},
                               {"hidden_size", hidden},
                               {"num_hidden_layers", layers},
                               {"num_attention_heads", heads},
                               {"num_key_value_heads", 8},
                               {"head_dim", hidden / heads},
                               {"intermediate_size", mlp},
                               {"max_position_embeddings", 131072}});
}

}  // namespace yoke::test
