#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace yoke {

int32_t sample_token(std::span<const float> logits, int64_t vocabulary, const SamplingOptions& options,
                     double uniform) {
  logits = logits.first(static_cast<size_t>(std::min<int64_t>(vocabulary, static_cast<int64_t>(logits.size()))));
  for (const float logit : logits) {
    if (std::isnan(logit))
      throw UserError(ExitCode::non_finite, "The model's logits are not finite; it can't be sampled.");
  }
  const auto likelier = [&](int32_t a, int32_t b) {
    const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  if (options.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  size_t keep = order.size();
  if (options.top_k > 0) keep = std::min(keep, static_cast<size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(), likelier);
  order.resize(keep);

  const double largest = logits[static_cast<size_t>(order[0])];
  std::vector<double> weights(keep);
  for (size_t i = 0; i < keep; ++i) {
    weights[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - largest) / options.temperature);
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  size_t count = 0;
  while (count < keep && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  total = kept;
  double left = uniform * total;
  for (size_t i = 0; i < count; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace yoke
