// Formats of moments for the float64 references of `*_cases.cc`, written independently of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/moment.h"
#include "ops/op_case.h"

namespace yoke {

/// The dynamic map in float64, built as its inventors describe it: means of neighbours in linspace(0.1, 1, n + 1).
inline std::vector<double> reference_map(bool is_signed) {
  std::vector<double> map{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int n = static_cast<int>(std::exp2(is_signed ? i : i + 1));
    const auto linspace = [&](int k) { return 0.1 + (1.0 - 0.1) * k / n; };
    for (int k = 0; k < n; ++k) {
      const double mean = (linspace(k) + linspace(k + 1)) / 2 * std::pow(10.0, i - 6);
      map.push_back(mean);
      if (is_signed) map.push_back(-mean);
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

/// Values of 8-bit codes.
inline std::vector<double> reference_decode(const std::vector<double>& codes, const std::vector<double>& scale,
                                            bool is_signed) {
  const std::vector<double> map = reference_map(is_signed);
  std::vector<double> values;
  for (size_t i = 0; i < codes.size(); ++i) values.push_back(map[static_cast<size_t>(codes[i])] * scale[i / 256]);
  return values;
}

/// Codes and scales of values: the nearest, by looking at all; never that of zero for what is positive, unsigned.
inline void reference_encode(const std::vector<double>& values, bool is_signed, std::vector<double>& codes,
                             std::vector<double>& scale) {
  const std::vector<double> map = reference_map(is_signed);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 256 == 0) {
      scale[i / 256] = 0;
      for (size_t j = i; j < std::min(i + 256, values.size()); ++j) {
        scale[i / 256] = std::max(scale[i / 256], std::abs(values[j]));
      }
    }
    const double x = scale[i / 256] > 0 ? values[i] / scale[i / 256] : 0;
    size_t best = !is_signed && x > 0 ? 1 : 0;
    for (size_t code = best; code < map.size(); ++code) {
      if (std::abs(map[code] - x) < std::abs(map[best] - x)) best = code;
    }
    codes[i] = static_cast<double>(best);
  }
}

/// bf16 of element i, rounded by 16 bits of its random word that begin at `shift`: up when they reach what is missing.
inline double reference_round(double x, const RandomStream& random, size_t i, uint64_t use, int shift) {
  constexpr size_t kBlock = 512, kCalls = kBlock / 4;
  const uint64_t call = (i / kBlock * kCalls + i % kCalls) | use << 63;
  const uint32_t word = random.block(call)[i % kBlock / kCalls];
  if (x == 0) return 0;
  const double unit = std::ldexp(1.0, std::ilogb(x) - 7), magnitude = std::abs(x);
  const double below = std::floor(magnitude / unit) * unit;
  const bool up = (magnitude - below) / unit * 65536 + ((word >> shift) & 0xffffu) >= 65536;
  return std::copysign(below + (up ? unit : 0), x);
}

/// A moment's views: "m", and "m_scale" where it is in codes.
inline MomentTensor moment_of(Views& v, const std::string& name) {
  return {v[name], v[name].dtype == DType::u8 ? v[name + "_scale"] : TensorView{}};
}

inline int64_t moment_blocks(int64_t count) { return (count + kMomentBlock - 1) / kMomentBlock; }

}  // namespace yoke
