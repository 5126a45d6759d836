#include "ops/cpu_math.h"
#include "ops/rope/rope_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

/// Turns n pairs (lower[i], upper[i]).
template <class T>
void rotate(const T* lower, const T* upper, const float* cosine, const float* sine, float sign, T* lower_out,
            T* upper_out, int64_t n) {
  float lower_buffer[kBlock], upper_buffer[kBlock];
  const float* a = widen(lower, lower_buffer, n);
  const float* b = widen(upper, upper_buffer, n);
  float* ya = block_of(lower_out, lower_buffer);
  float* yb = block_of(upper_out, upper_buffer);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = a[i], z = b[i], c = cosine[i], s = sign * sine[i];
    ya[i] = x * c - z * s;
    yb[i] = z * c + x * s;
  }
  narrow(ya, lower_out, n);
  narrow(yb, upper_out, n);
}

template <class T>
void rotate_rows(const Rope& a, int threads) {
  const int64_t rows = a.x.rows(), cols = a.x.cols(), half = a.head_dim / 2;
  const float sign = a.inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = a.x.as<T>() + row * a.x.row_stride;
    T* y = a.y.as<T>() + row * a.y.row_stride;
    const float* table = a.table.as<float>() + a.positions.as<int32_t>()[row] * a.table.row_stride;
    for (int64_t head = 0; head < cols; head += a.head_dim) {
      for (int64_t i = 0; i < half; i += kBlock) {
        const int64_t at = head + i;
        rotate(x + at, x + at + half, table + i, table + half + i, sign, y + at, y + at + half,
               std::min(kBlock, half - i));
      }
    }
  }
}

}  // namespace

void rope(Context& ctx, const Rope& a) { YOKE_FOR_TYPE(a.x.dtype, T, rotate_rows<T>(a, ctx.device.threads())); }

}  // namespace yoke::YOKE_ISA
