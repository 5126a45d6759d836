#include "model/rope_table.h"

#include <cmath>
#include <numbers>

namespace yoke {

namespace {

double llama3_scaled(double frequency, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(s.original_max_positions);
  if (wavelength > context / s.low_frequency_factor) return frequency / s.factor;
  if (wavelength < context / s.high_frequency_factor) return frequency;
  const double keep =
      (context / wavelength - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
  return (1 - keep) * frequency / s.factor + keep * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies(static_cast<size_t>(config.head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double f = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (config.rope_scaling.kind == RopeScaling::Kind::linear) f /= config.rope_scaling.factor;
    if (config.rope_scaling.kind == RopeScaling::Kind::llama3) f = llama3_scaled(f, config.rope_scaling);
    frequencies[i] = f;
  }
  return frequencies;
}

std::vector<float> rope_table(const ModelConfig& config, int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const size_t half = frequencies.size();
  std::vector<float> table(static_cast<size_t>(positions) * 2 * half);
  for (size_t p = 0; p < static_cast<size_t>(positions); ++p) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * frequencies[i];
      table[p * 2 * half + i] = static_cast<float>(std::cos(angle));
      table[p * 2 * half + half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace yoke
