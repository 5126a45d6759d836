// Sixteen fp32 lanes on every instruction set, and sixteen pairs of bf16 where the processor multiplies those. Included
// only by this folder's `*_cpu.cc` files.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "ops/cpu_kernel.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace yoke::YOKE_ISA {
namespace {

constexpr int kLanes = 16;
/// An exponent whose power of two is zero. Infinities would turn into NaN on the way.
constexpr float kNever = -1e30f;

/// 2^f = kExp2[0] + kExp2[1] f + ... for |f| <= 1/2: the smallest largest relative error, 9.2e-8, that leaves 2^0
/// exact.
constexpr float kExp2[6] = {1.0f, 0.693147004f, 0.240222424f, 0.0555073358f, 0.00967148226f, 0.00132646377f};

#define YOKE_LANES static inline __attribute__((always_inline))

#if defined(__AVX512F__)

// Register tile of a product: rows x vectors of accumulators.
constexpr int kTileRows = 6, kTileVectors = 4;

struct Lanes {
  __m512 v;
};
YOKE_LANES Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
YOKE_LANES void store(float* p, Lanes x) { _mm512_storeu_ps(p, x.v); }
YOKE_LANES Lanes splat(float x) { return {_mm512_set1_ps(x)}; }
YOKE_LANES Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
YOKE_LANES Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
YOKE_LANES Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
YOKE_LANES Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
YOKE_LANES Lanes larger(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
/// x where begin <= j <= end, else `other`.
YOKE_LANES Lanes keep_between(Lanes x, const int32_t* begin, const int32_t* end, int32_t j, float other) {
  const __m512i at = _mm512_set1_epi32(j);
  const __mmask16 keep =
      _mm512_cmple_epi32_mask(_mm512_loadu_si512(begin), at) & _mm512_cmple_epi32_mask(at, _mm512_loadu_si512(end));
  return {_mm512_mask_blend_ps(keep, _mm512_set1_ps(other), x.v)};
}
YOKE_LANES Lanes exp2(Lanes x) {
  const __m512 n = _mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x.v, n);
  __m512 y = _mm512_set1_ps(kExp2[5]);
  for (int i = 4; i >= 0; --i) y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kExp2[i]));
  return {_mm512_scalef_ps(y, n)};
}

#elif defined(__AVX2__)

constexpr int kTileRows = 6, kTileVectors = 1;

struct Lanes {
  __m256 a, b;
};
YOKE_LANES Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
YOKE_LANES void store(float* p, Lanes x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
YOKE_LANES Lanes splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
YOKE_LANES Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)}; }
YOKE_LANES Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)}; }
YOKE_LANES Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)}; }
YOKE_LANES Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}
YOKE_LANES Lanes larger(Lanes a, Lanes b) { return {_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)}; }
YOKE_LANES __m256 keep_between8(__m256 x, const int32_t* begin, const int32_t* end, int32_t j, float other) {
  const __m256i at = _mm256_set1_epi32(j);
  const __m256i below = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(begin)), at);
  const __m256i above = _mm256_cmpgt_epi32(at, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(end)));
  return _mm256_blendv_ps(x, _mm256_set1_ps(other), _mm256_castsi256_ps(_mm256_or_si256(below, above)));
}
YOKE_LANES Lanes keep_between(Lanes x, const int32_t* begin, const int32_t* end, int32_t j, float other) {
  return {keep_between8(x.a, begin, end, j, other), keep_between8(x.b, begin + 8, end + 8, j, other)};
}
YOKE_LANES __m256 exp2_8(__m256 x) {
  // At -127 the exponent's bits are those of zero. NaN passes: max and min return their second operand for it.
  x = _mm256_min_ps(_mm256_set1_ps(127), _mm256_max_ps(_mm256_set1_ps(-127), x));
  const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 f = _mm256_sub_ps(x, n);
  __m256 y = _mm256_set1_ps(kExp2[5]);
  for (int i = 4; i >= 0; --i) y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(kExp2[i]));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}
YOKE_LANES Lanes exp2(Lanes x) { return {exp2_8(x.a), exp2_8(x.b)}; }

#else

constexpr int kTileRows = 2, kTileVectors = 1;

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct Lanes {
  Float4 a, b, c, d;
};
YOKE_LANES Float4 load4(const float* p) {
  Float4 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
YOKE_LANES void store4(float* p, Float4 x) { __builtin_memcpy(p, &x, sizeof x); }
YOKE_LANES Float4 splat4(float x) { return Float4{x, x, x, x}; }
YOKE_LANES Float4 larger4(Float4 a, Float4 b) { return a > b ? a : b; }
YOKE_LANES Lanes load(const float* p) { return {load4(p), load4(p + 4), load4(p + 8), load4(p + 12)}; }
YOKE_LANES void store(float* p, Lanes x) {
  store4(p, x.a);
  store4(p + 4, x.b);
  store4(p + 8, x.c);
  store4(p + 12, x.d);
}
YOKE_LANES Lanes splat(float x) { return {splat4(x), splat4(x), splat4(x), splat4(x)}; }
YOKE_LANES Lanes operator+(Lanes x, Lanes y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
YOKE_LANES Lanes operator-(Lanes x, Lanes y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
YOKE_LANES Lanes operator*(Lanes x, Lanes y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
YOKE_LANES Lanes multiply_add(Lanes x, Lanes y, Lanes z) {
  return {x.a * y.a + z.a, x.b * y.b + z.b, x.c * y.c + z.c, x.d * y.d + z.d};
}
YOKE_LANES Lanes larger(Lanes x, Lanes y) {
  return {larger4(x.a, y.a), larger4(x.b, y.b), larger4(x.c, y.c), larger4(x.d, y.d)};
}
YOKE_LANES Float4 keep_between4(Float4 x, const int32_t* begin, const int32_t* end, int32_t j, float other) {
  Int4 from, to;
  __builtin_memcpy(&from, begin, sizeof from);
  __builtin_memcpy(&to, end, sizeof to);
  const Int4 at{j, j, j, j};
  return ((from <= at) & (at <= to)) != 0 ? x : splat4(other);
}
YOKE_LANES Lanes keep_between(Lanes x, const int32_t* begin, const int32_t* end, int32_t j, float other) {
  return {keep_between4(x.a, begin, end, j, other), keep_between4(x.b, begin + 4, end + 4, j, other),
          keep_between4(x.c, begin + 8, end + 8, j, other), keep_between4(x.d, begin + 12, end + 12, j, other)};
}
YOKE_LANES Float4 exp2_4(Float4 x) {
  x = x < splat4(-127) ? splat4(-127) : x > splat4(127) ? splat4(127) : x;  // as in AVX2; NaN passes
  const Float4 round = splat4(12582912.0f);                                 // 1.5 * 2^23: no bits left for fractions
  const Float4 shifted = x + round;
  const Float4 f = x - (shifted - round);
  Float4 y = splat4(kExp2[5]);
  for (int i = 4; i >= 0; --i) y = y * f + splat4(kExp2[i]);
  Int4 n, bits;
  __builtin_memcpy(&n, &shifted, sizeof n);
  __builtin_memcpy(&bits, &round, sizeof bits);
  n = (n - bits + 127) << 23;
  Float4 power;
  __builtin_memcpy(&power, &n, sizeof power);
  return y * power;
}
YOKE_LANES Lanes exp2(Lanes x) { return {exp2_4(x.a), exp2_4(x.b), exp2_4(x.c), exp2_4(x.d)}; }

#endif

}  // namespace
}  // namespace yoke::YOKE_ISA
