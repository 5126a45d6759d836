#include <cstring>

#include "ops/cpu_math.h"
#include "ops/elementwise/elementwise_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

template <class Wide, class T>
void add_rows(const Add& a, int threads) {
  for_blocks(threads, extent(a.y, a.a, a.b), [&](int64_t row, int64_t begin, int64_t n) {
    float a_buffer[kBlock], b_buffer[kBlock];
    T* out = a.y.as<T>() + row * a.y.row_stride + begin;
    const float* x = widen(a.a.as<Wide>() + row * a.a.row_stride + begin, a_buffer, n);
    const float* z = widen(a.b.as<T>() + row * a.b.row_stride + begin, b_buffer, n);
    float* y = block_of(out, a_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] + z[i];
    narrow(y, out, n);
  });
}

template <class From, class To>
void convert_rows(const Convert& a, int threads) {
  for_blocks(threads, extent(a.x, a.y), [&](int64_t row, int64_t begin, int64_t n) {
    const From* x = a.x.as<From>() + row * a.x.row_stride + begin;
    To* y = a.y.as<To>() + row * a.y.row_stride + begin;
    if constexpr (std::is_same_v<From, To>) {
      std::memcpy(y, x, static_cast<size_t>(n) * sizeof(To));
    } else if constexpr (std::is_same_v<From, double>) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
    } else if constexpr (std::is_same_v<To, float>) {
      widen(x, y, n);
    } else {
      float buffer[kBlock];
      narrow(widen(x, buffer, n), y, n);
    }
  });
}

template <class T>
void fill_rows(const Fill& a, T value, int threads) {
  for_blocks(threads, extent(a.y), [&](int64_t row, int64_t begin, int64_t n) {
    T* y = a.y.as<T>() + row * a.y.row_stride + begin;
    for (int64_t i = 0; i < n; ++i) y[i] = value;
  });
}

/// Numbers 2 * pair and 2 * pair + 1 of the stream: RandomStream::normal, whose halves share a logarithm.
void normal_pair(const RandomStream& random, uint64_t pair, double* out) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const std::array<uint32_t, 4> words =
      philox({low(pair), high(pair), low(random.stream), high(random.stream)}, {low(random.seed), high(random.seed)});
  const auto uniform = [&](int at) {
    const uint64_t word = static_cast<uint64_t>(words[at + 1]) << 32 | words[at];
    return (static_cast<double>(word >> 11) + 0.5) * 0x1p-53;
  };
  const double radius = std::sqrt(-2.0 * std::log(uniform(0)));
  const double angle = 6.283185307179586476925 * uniform(2);
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

template <class T>
void fill_normal_rows(const FillNormal& a, int threads) {
  const int64_t step = a.row_step == 0 ? a.y.cols() : a.row_step;
  const Extent all = step == a.y.cols() ? extent(a.y) : Extent{a.y.rows(), a.y.cols()};
  for_blocks(threads, all, [&](int64_t row, int64_t begin, int64_t n) {
    float buffer[kBlock];
    T* out = a.y.as<T>() + row * all.cols + begin;
    float* y = block_of(out, buffer);
    const uint64_t first = a.first + static_cast<uint64_t>(row * step + begin);
    for (int64_t i = -static_cast<int64_t>(first & 1); i < n; i += 2) {
      double pair[2];
      normal_pair(a.random, (first + static_cast<uint64_t>(i)) / 2, pair);
      if (i >= 0) y[i] = static_cast<float>(pair[0] * a.deviation);
      if (i + 1 < n) y[i + 1] = static_cast<float>(pair[1] * a.deviation);
    }
    narrow(y, out, n);
  });
}

}  // namespace

void add(Context& ctx, const Add& a) {
  const int threads = ctx.device.threads();
  if (a.a.dtype == DType::f32) {
    YOKE_FOR_TYPE(a.y.dtype, T, add_rows<float, T>(a, threads));
  } else {
    YOKE_FOR_TYPE(a.y.dtype, T, add_rows<T, T>(a, threads));
  }
}

void convert(Context& ctx, const Convert& a) {
  const int threads = ctx.device.threads();
  if (a.x.dtype == DType::f64) {
    convert_rows<double, float>(a, threads);
    return;
  }
  YOKE_FOR_TYPE(a.x.dtype, From, YOKE_FOR_TYPE(a.y.dtype, To, convert_rows<From, To>(a, threads)));
}

void fill(Context& ctx, const Fill& a) {
  const int threads = ctx.device.threads();
  if (a.y.dtype == DType::f64) return fill_rows(a, static_cast<double>(a.value), threads);
  if (a.y.dtype == DType::u8) return fill_rows(a, static_cast<uint8_t>(a.value), threads);
  YOKE_FOR_TYPE(a.y.dtype, T, fill_rows(a, from_float<T>(a.value), threads));
}

void fill_normal(Context& ctx, const FillNormal& a) {
  YOKE_FOR_TYPE(a.y.dtype, T, fill_normal_rows<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
