#include "ops/cpu_math.h"
#include "ops/sum_squares/sum_squares_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

/// Squares of fp32 values are exact in fp64: nothing overflows or vanishes.
template <class T>
double sum_chunk(const T* x, int64_t count) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    float buffer[kBlock];
    const float* block = widen(x + begin, buffer, n);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(block[i]) * static_cast<double>(block[i]);
    total += sum;
  }
  return total;
}

template <class T>
void sum(const SumSquaresKernel& a, int threads) {
  constexpr int64_t kChunk = SumSquaresKernel::kChunk;
  const int64_t count = a.x.elements(), chunks = a.partial.elements();
  double* partial = a.partial.as<double>();
#pragma omp parallel for num_threads(threads) schedule(static) if (chunks > 1)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    partial[chunk] = sum_chunk(a.x.as<T>() + chunk * kChunk, std::min(kChunk, count - chunk * kChunk));
  }
  double total = a.accumulate ? *a.y.as<double>() : 0.0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) total += partial[chunk];
  *a.y.as<double>() = total;
}

}  // namespace

void sum_squares(Context& ctx, const SumSquaresKernel& a) {
  YOKE_FOR_TYPE(a.x.dtype, T, sum<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
