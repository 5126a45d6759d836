#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/random.h"

namespace yoke {

namespace {

/// Finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t epoch) : size_(size) {
  YOKE_ASSERT(size >= 1 && size <= uint64_t{1} << 62, "{}", size);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
  const RandomStream stream{seed, epoch};
  for (int round = 0; round < kRounds; ++round) keys_[round] = stream.word(round);
}

uint64_t Permutation::operator()(uint64_t i) const {
  YOKE_ASSERT(i < size_, "{} of {}", i, size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = i >> half_bits_, right = i & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix(right + key) & mask);
      left = right;
      right = next;
    }
    i = left << half_bits_ | right;
  } while (i >= size_);
  return i;
}

}  // namespace yoke
