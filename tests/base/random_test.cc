#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace yoke {
namespace {

using Block = std::array<uint32_t, 4>;

TEST(Random, UniformNeverReachesItsEnds) {
  static_assert(RandomStream::to_unit(0) > 0 && RandomStream::to_unit(UINT64_MAX) < 1);
  static_assert(RandomStream::to_unit(uint64_t{1} << 63) > RandomStream::to_unit((uint64_t{1} << 63) - 1));
}

// The known answers that Random123 publishes for philox4x32 with 10 rounds.
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, SeedStreamAndIndexAllCountInFull) {
  constexpr uint64_t kHigh = uint64_t{1} << 40;
  std::set<uint64_t> words;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, kHigh}) {
    for (const uint64_t stream : {uint64_t{0}, uint64_t{1}, kHigh}) {
      for (const uint64_t i : {uint64_t{0}, uint64_t{1}, uint64_t{2}, kHigh, kHigh + 1}) {
        words.insert(RandomStream{seed, stream}.word(i));
      }
    }
  }
  EXPECT_EQ(words.size(), 3u * 3u * 5u);
}

TEST(Random, WordsAreTheHalvesOfBlocks) {
  const RandomStream random{7, 9};
  for (uint64_t i = 0; i < 100; ++i) {
    const Block b = philox({static_cast<uint32_t>(i), 0, 9, 0}, {7, 0});
    EXPECT_EQ(random.word(2 * i), static_cast<uint64_t>(b[1]) << 32 | b[0]);
    EXPECT_EQ(random.word(2 * i + 1), static_cast<uint64_t>(b[3]) << 32 | b[2]);
  }
}

// 1000 equal cells: chi-square of 999 degrees of freedom, mean 999, deviation 44.7; five deviations allowed.
TEST(Random, UniformIsUniform) {
  constexpr int kCells = 1000, kCount = 1000000;
  std::vector<double> cells(kCells);
  const RandomStream random{3, 4};
  for (int i = 0; i < kCount; ++i) {
    const double x = random.uniform(static_cast<uint64_t>(i));
    ASSERT_TRUE(x > 0 && x < 1);
    ++cells[static_cast<size_t>(x * kCells)];
  }
  double chi_square = 0;
  for (const double count : cells) chi_square += (count - 1000) * (count - 1000) / 1000;
  EXPECT_NEAR(chi_square, 999, 5 * 44.7);
}

// The largest distance from the normal distribution's cumulative function; Kolmogorov's bound at p = 1e-6.
TEST(Random, NormalIsNormal) {
  constexpr size_t kCount = 100000;
  const RandomStream random{5, 6};
  std::vector<double> x(kCount);
  for (size_t i = 0; i < kCount; ++i) x[i] = random.normal(i);
  std::sort(x.begin(), x.end());
  double largest = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const double cumulative = 0.5 * std::erfc(-x[i] / std::sqrt(2.0));
    largest = std::max(largest, std::abs(cumulative - (static_cast<double>(i) + 0.5) / kCount));
  }
  EXPECT_LT(largest, 2.7 / std::sqrt(static_cast<double>(kCount)));
}

}  // namespace
}  // namespace yoke
