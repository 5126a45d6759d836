// Conversions of the 16-bit formats against definitions spelled out in double arithmetic.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace yoke {
namespace {

struct Format {
  int exponent_bits, fraction_bits;
  int lowest_exponent() const { return 2 - (1 << (exponent_bits - 1)); }
};
constexpr Format kBf16{8, 7}, kF16{5, 10};

double value_of(const Format& f, uint32_t bits) {
  const int exponent = static_cast<int>(bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const double fraction = std::ldexp(bits & ((1u << f.fraction_bits) - 1), -f.fraction_bits);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << f.exponent_bits) - 1) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, f.lowest_exponent());
  return sign * std::ldexp(1 + fraction, f.lowest_exponent() + exponent - 1);
}

/// Nearest by search: of all finite values and the first power of two beyond them, which stands for infinity, the one
/// nearest to x; of two equally near ones the one with an even pattern.
uint32_t nearest_bits(const Format& f, double x) {
  const uint32_t sign = std::signbit(x) ? 0x8000u : 0u;
  const auto infinity = static_cast<uint32_t>((1 << f.exponent_bits) - 1) << f.fraction_bits;
  const auto at = [&](uint32_t bits) {
    return bits == infinity ? std::ldexp(1.0, (1 << f.exponent_bits) - 2 + f.lowest_exponent()) : value_of(f, bits);
  };
  const double magnitude = std::abs(x);
  uint32_t low = 0, high = infinity;  // the last pattern at or below |x| is in [low, high]
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (at(middle) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low == infinity) return sign | infinity;
  const double below = magnitude - at(low), above = at(low + 1) - magnitude;
  return sign | (below < above || (below == above && low % 2 == 0) ? low : low + 1);
}

template <class T>
void check_all_patterns(const Format& f) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(T{static_cast<uint16_t>(bits)});
    const double want = value_of(f, bits);
    const T back = from_float<T>(x);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(x)) << bits;
      ASSERT_TRUE(std::isnan(value_of(f, back.bits))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(x), want) << bits;
    ASSERT_EQ(std::signbit(x), bits >> 15 != 0) << bits;
    ASSERT_EQ(back.bits, bits);
  }
}

TEST(DType, EveryBf16) { check_all_patterns<bf16>(kBf16); }
TEST(DType, EveryF16) { check_all_patterns<f16>(kF16); }

template <class T>
void check_rounding(const Format& f, float x) {
  const uint32_t bits = from_float<T>(x).bits;
  if (std::isnan(x)) {
    ASSERT_TRUE(std::isnan(value_of(f, bits)));
  } else {
    ASSERT_EQ(bits, nearest_bits(f, static_cast<double>(x))) << "of " << x;
  }
}

TEST(DType, RoundsRandomPatternsToNearestEven) {
  const RandomStream random{.seed = 1};
  for (uint64_t i = 0; i < 300000; ++i) {
    const float x = detail::bits_float(static_cast<uint32_t>(random.word(i)));
    check_rounding<bf16>(kBf16, x);
    check_rounding<f16>(kF16, x);
    check_rounding<f16>(kF16, std::ldexp(x, -std::ilogb(std::isfinite(x) && x != 0 ? x : 1) - 26 + i % 44));
  }
}

template <class T>
void check_middles(const Format& f) {
  const auto infinity = static_cast<uint32_t>((1 << f.exponent_bits) - 1) << f.fraction_bits;
  for (uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const auto middle = static_cast<float>((value_of(f, bits) + value_of(f, bits + 1)) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, HUGE_VALF)}) {
      check_rounding<T>(f, x);
      check_rounding<T>(f, -x);
    }
  }
}

TEST(DType, MiddlesOfNeighboursOfBf16) { check_middles<bf16>(kBf16); }
TEST(DType, MiddlesOfNeighboursOfF16) { check_middles<f16>(kF16); }

TEST(DType, Sizes) {
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::bf16), sizeof(bf16));
  EXPECT_EQ(size_of(DType::f16), sizeof(f16));
  EXPECT_EQ(size_of(DType::i64), sizeof(int64_t));
  EXPECT_EQ(size_of(DType::i32), sizeof(int32_t));
  EXPECT_EQ(size_of(DType::u8), sizeof(uint8_t));
}

}  // namespace
}  // namespace yoke
