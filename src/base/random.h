// Counter-based random numbers: the value depends on (key, counter) alone, never on threads, ranks or order.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace yoke {

/// Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11).
static inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * counter[0];
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// A stream of numbers named by a seed and a stream id; element i of it is a pure function.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t stream = 0;
  /// For who numbers by a tensor's elements: where its first one stands in a larger tensor.
  uint64_t first = 0;

  std::array<uint32_t, 4> block(uint64_t i) const {
    return philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(stream),
                   static_cast<uint32_t>(stream >> 32)},
                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  /// Uniform 64-bit word number i.
  uint64_t word(uint64_t i) const {
    const auto b = block(i / 2);
    const int at = static_cast<int>(i % 2) * 2;
    return static_cast<uint64_t>(b[at + 1]) << 32 | b[at];
  }
  /// Maps a word to (0, 1): 2^52 values, none of which rounds to an end.
  static constexpr double to_unit(uint64_t word) { return (static_cast<double>(word >> 12) + 0.5) * 0x1p-52; }
  /// Uniform in (0, 1), number i.
  double uniform(uint64_t i) const { return to_unit(word(i)); }
  /// Standard normal, number i (Box-Muller).
  double normal(uint64_t i) const {
    const double radius = std::sqrt(-2.0 * std::log(uniform(i & ~uint64_t{1})));
    const double angle = 6.283185307179586476925 * uniform(i | 1);
    return radius * ((i & 1) ? std::sin(angle) : std::cos(angle));
  }
};

}  // namespace yoke
