// Choosing a token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace yoke {

struct SamplingOptions {
  double temperature = 1;  ///< 0: the likeliest token
  int64_t top_k = 0;       ///< keep the k likeliest; 0: all
  double top_p = 1;        ///< then keep the likeliest that together reach this probability, at least one
};

/// Id of a token below `vocabulary`, from `uniform` in (0, 1). Ties go to the lower id. UserError (non_finite) when a
/// logit is NaN.
int32_t sample_token(std::span<const float> logits, int64_t vocabulary, const SamplingOptions& options, double uniform);

}  // namespace yoke
