#include "ops/bias/bias_kernels.h"
#include "ops/cpu_math.h"

namespace yoke::YOKE_ISA {
namespace {

template <class T>
void backward(const BiasBackwardKernel& a, int threads) {
  const int64_t rows = a.dy.rows(), cols = a.dy.cols();
  float* partials = a.partial.as<float>();
  // One chunk of rows per partial, so that the sum does not depend on how many threads really ran.
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (rows * cols >= kWorthThreads)
  for (int64_t chunk = 0; chunk < threads; ++chunk) {
    float* partial = partials + chunk * cols;
    std::fill(partial, partial + cols, 0.0f);
    for (int64_t row = rows * chunk / threads; row < rows * (chunk + 1) / threads; ++row) {
      for (int64_t begin = 0; begin < cols; begin += kBlock) {
        const int64_t n = std::min(kBlock, cols - begin);
        float buffer[kBlock];
        const float* dy = widen(a.dy.as<T>() + row * a.dy.row_stride + begin, buffer, n);
        float* sum = partial + begin;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sum[i] += dy[i];
      }
    }
  }
  add_partials(partials, threads, cols, a.accumulate, a.dbias.as<float>());
}

}  // namespace

void bias_backward(Context& ctx, const BiasBackwardKernel& a) {
  YOKE_FOR_TYPE(a.dy.dtype, T, backward<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
