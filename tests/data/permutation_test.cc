#include "data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace yoke {
namespace {

TEST(Permutation, IsABijectionForEverySizeUpTo600AndSomeLargerOnes) {
  std::vector<uint64_t> sizes;
  for (uint64_t size = 1; size <= 600; ++size) sizes.push_back(size);
  for (const uint64_t size : {1023u, 1024u, 1025u, 65536u, 65537u, 300'000u}) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    for (const uint64_t epoch : {0u, 1u}) {
      const Permutation permutation(size, 42, epoch);
      std::vector<bool> seen(size);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t image = permutation(i);
        ASSERT_LT(image, size);
        ASSERT_FALSE(seen[image]) << size << " at " << i;
        seen[image] = true;
      }
    }
  }
}

TEST(Permutation, StaysInsideAndNeverRepeatsBeyond32Bits) {
  for (const uint64_t size : {(uint64_t{1} << 32) + 1, (uint64_t{1} << 33) - 7, uint64_t{1} << 40, uint64_t{1} << 62}) {
    const Permutation permutation(size, 3, 9);
    std::set<uint64_t> images;
    uint64_t beyond = 0;
    constexpr uint64_t kCount = 20'000;
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint64_t image = permutation(size - 1 - i);
      ASSERT_LT(image, size);
      images.insert(image);
      beyond += image >= size / 2;
    }
    EXPECT_EQ(images.size(), kCount);
    EXPECT_NEAR(static_cast<double>(beyond), kCount / 2.0, 5 * std::sqrt(kCount / 4.0));
  }
}

TEST(Permutation, SeedAndEpochDecideTheOrder) {
  const auto order = [](uint64_t seed, uint64_t epoch) {
    const Permutation permutation(1000, seed, epoch);
    std::vector<uint64_t> images;
    for (uint64_t i = 0; i < 1000; ++i) images.push_back(permutation(i));
    return images;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
}

// Where element i goes must be uniform over the epochs, also for the small sizes where a Feistel network has few bits.
TEST(Permutation, PlacesAreUniform) {
  for (const uint64_t size : {2u, 3u, 5u, 7u, 16u, 30u}) {
    constexpr int kEpochs = 6000;
    std::vector<double> counts(size * size);
    for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const Permutation permutation(size, 7, epoch);
      for (uint64_t i = 0; i < size; ++i) ++counts[i * size + permutation(i)];
    }
    const double expected = static_cast<double>(kEpochs) / static_cast<double>(size);
    double chi = 0.0;
    for (const double count : counts) chi += (count - expected) * (count - expected) / expected;
    // Chi-square of a doubly stochastic table has (size - 1)^2 degrees of freedom; six standard deviations above.
    const double freedom = static_cast<double>((size - 1) * (size - 1));
    EXPECT_LT(chi, freedom + 6.0 * std::sqrt(2.0 * freedom) + 6.0) << size;
  }
}

}  // namespace
}  // namespace yoke
