// A pseudo-random order without an array.
#pragma once

#include <array>
#include <cstdint>

namespace yoke {

/// A bijection of [0, size), 1 <= size <= 2^62, chosen by (seed, epoch). State: a few words, whatever the size.
/// A balanced Feistel network over the next even power of two; what falls outside is sent through again until it is
/// inside (cycle walking), on average less than four times.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t epoch);
  uint64_t operator()(uint64_t i) const;

 private:
  static constexpr int kRounds = 8;

  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace yoke
