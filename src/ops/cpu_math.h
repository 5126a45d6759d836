// Vector helpers of CPU kernels: exp, and rows of any element type in blocks of fp32. Like cpu_kernel.h, only for
// `*_cpu.cc` files, and everything has internal linkage.
//
// A kernel is written once, over fp32 blocks:
//
//   float buffer[kBlock];
//   const float* x = widen(row + begin, buffer, n);   // the row itself when it is fp32
//   float* y = block_of(out + begin, buffer);         // likewise
//   for (...) y[i] = f(x[i]);
//   narrow(y, out + begin, n);                        // nothing left to do when it is fp32
#pragma once

#include <type_traits>

#include "ops/cpu_kernel.h"

namespace yoke::YOKE_ISA {

/// Elements of a block: small enough for a few buffers in the first-level cache.
static constexpr int64_t kBlock = 512;
/// With fewer elements than this a parallel region costs more than it saves.
static constexpr int64_t kWorthThreads = 1 << 14;

/// exp(x) within about one unit in the last place, subnormal results too; NaN stays NaN. Branchless, so that loops
/// around it vectorise.
static inline float fast_exp(float x) {
  x = x > 89.0f ? 89.0f : x;  // infinity from here on
  x = x < -105.0f ? -105.0f : x;
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const float shifted = x * 1.44269504088896341f + kToInteger;
  const float n = shifted - kToInteger;
  // ln 2 in two parts; the product of n and the upper one is exact.
  const float r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  float p = 1.38144334778e-3f;  // minimax on |r| <= 0.347: the relative error of the polynomial is 3e-9
  p = p * r + 8.36879666895e-3f;
  p = p * r + 4.16683964431e-2f;
  p = p * r + 1.66665196419e-1f;
  p = p * r + 4.99999940395e-1f;
  p = p * r * r + r;
  p = p + 1.0f;
  // 2^n as two factors, because n reaches from -152 to 128.
  const int32_t exponent = static_cast<int32_t>(detail::float_bits(shifted) - detail::float_bits(kToInteger));
  const int32_t half = exponent >> 1;
  const auto power = [](int32_t e) { return detail::bits_float(static_cast<uint32_t>(e + 127) << 23); };
  return p * power(half) * power(exponent - half);
}

#if defined(__AVX512F__)
// The unmasked conversions of GCC 12's header draw false warnings.
static constexpr __mmask16 kAll = 0xffff;
#endif

/// `n` elements as fp32: in `buffer`, or where they are.
template <class T>
static inline const float* widen(const T* x, float* buffer, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    int64_t i = 0;
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, f16>) {
      for (; i + 16 <= n; i += 16) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        _mm512_storeu_ps(buffer + i, _mm512_maskz_cvtph_ps(kAll, halves));
      }
    }
#elif defined(__F16C__)
    if constexpr (std::is_same_v<T, f16>) {
      for (; i + 8 <= n; i += 8) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
        _mm256_storeu_ps(buffer + i, _mm256_cvtph_ps(halves));
      }
    }
#endif
#pragma omp simd
    for (int64_t j = i; j < n; ++j) buffer[j] = to_float(x[j]);
    return buffer;
  }
}

/// Where to compute the elements of `y` as fp32, before narrow().
template <class T>
static inline float* block_of(T* y, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return y;
  } else {
    return buffer;
  }
}

/// Rounds `n` elements to `y`.
template <class T>
static inline void narrow(const float* block, T* y, int64_t n) {
  if constexpr (!std::is_same_v<T, float>) {
    int64_t i = 0;
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, f16>) {
      for (; i + 16 <= n; i += 16) {
        const __m256i halves = _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(block + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), halves);
      }
    }
#elif defined(__F16C__)
    if constexpr (std::is_same_v<T, f16>) {
      for (; i + 8 <= n; i += 8) {
        const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(block + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), halves);
      }
    }
#endif
#pragma omp simd
    for (int64_t j = i; j < n; ++j) y[j] = from_float<T>(block[j]);
  }
}

/// Rows and columns that a kernel walks: one long row when every view is contiguous.
struct Extent {
  int64_t rows, cols;
};
template <class... Views>
static inline Extent extent(const TensorView& t, const Views&... others) {
  if ((t.contiguous() && ... && others.contiguous())) return {1, t.elements()};
  return {t.rows(), t.cols()};
}

/// body(row, begin, n) for every block of every row; blocks are shared out among the threads.
template <class Body>
static inline void for_blocks(int threads, Extent extent, const Body& body) {
  const int64_t blocks = (extent.cols + kBlock - 1) / kBlock;
#pragma omp parallel for num_threads(threads) schedule(static) if (extent.rows * extent.cols >= kWorthThreads)
  for (int64_t i = 0; i < extent.rows * blocks; ++i) {
    const int64_t begin = i % blocks * kBlock;
    body(i / blocks, begin, std::min(kBlock, extent.cols - begin));
  }
}

}  // namespace yoke::YOKE_ISA
