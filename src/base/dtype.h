// Element types and the two 16-bit floating-point formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace yoke {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u8 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

std::string_view name_of(DType dtype);

constexpr bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

namespace detail {
static inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
static inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}
}  // namespace detail

/// bfloat16: the upper half of an fp32. Conversion rounds to nearest even; NaN stays NaN.
struct bf16 {
  uint16_t bits = 0;
};

/// IEEE 754 binary16. Conversion rounds to nearest even; values beyond 65504 become infinity.
struct f16 {
  uint16_t bits = 0;
};

static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) { return detail::bits_float(static_cast<uint32_t>(x.bits) << 16); }
static inline float to_float(f16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  // A half's bits, moved into place, read as an fp32 that is 2^112 too small; the product also makes subnormals right.
  const float scaled = detail::bits_float(magnitude << 13) * detail::bits_float(0x77800000u);
  const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : detail::float_bits(scaled);
  return detail::bits_float(sign | special);
#endif
}

template <class T>
static inline T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t u = detail::float_bits(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (u >> 16) | 0x40u;
  return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}
template <>
inline f16 from_float<f16>(float x) {
#if defined(__F16C__)
  return {static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
#else
  const uint32_t u = detail::float_bits(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520: the first value that rounds to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal half: let an fp32 addition do the rounding
    half = detail::float_bits(detail::bits_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
#endif
}

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace yoke
