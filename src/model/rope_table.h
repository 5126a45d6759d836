// Cosines and sines of rotary positions, with Hugging Face's `linear` and `llama3` scaling.
#pragma once

#include <vector>

#include "model/config.h"

namespace yoke {

/// head_dim/2 angles per position; frequency i is theta^(-2i/head_dim), then scaled: `linear` divides by the factor;
/// `llama3` divides long wavelengths by it, keeps short ones and blends between (Llama 3.1's model card code).
std::vector<double> rope_frequencies(const ModelConfig& config);

/// [positions, head_dim] row-major: head_dim/2 cosines, then head_dim/2 sines.
std::vector<float> rope_table(const ModelConfig& config, int64_t positions);

}  // namespace yoke
