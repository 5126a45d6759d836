#include "ops/cpu_kernel.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

template <class T>
void forward(const RmsNormForward& a, int threads) {
  const int64_t rows = a.x.rows(), cols = a.x.cols();
  const T* weight = a.weight.as<T>();
  const bool add = a.delta.data != nullptr;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = a.x.as<T>() + row * a.x.row_stride;
    if (add) {
      const T* delta = a.delta.as<T>() + row * a.delta.row_stride;
      T* sum = a.residual_out.as<T>() + row * a.residual_out.row_stride;
#pragma omp simd
      for (int64_t i = 0; i < cols; ++i) sum[i] = from_float<T>(to_float(x[i]) + to_float(delta[i]));
      x = sum;
    }
    float square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < cols; ++i) square += to_float(x[i]) * to_float(x[i]);
    const float rstd = 1.0f / std::sqrt(square / static_cast<float>(cols) + a.epsilon);
    a.rstd.as<float>()[row] = rstd;
    T* y = a.y.as<T>() + row * a.y.row_stride;
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) y[i] = from_float<T>(to_float(x[i]) * rstd * to_float(weight[i]));
  }
}

template <class T>
void backward(const RmsNormBackwardKernel& a, int threads) {
  const int64_t rows = a.x.rows(), cols = a.x.cols();
  const T* weight = a.weight.as<T>();
  const bool with_weight = a.dweight.data != nullptr;
  float* partials = a.partial.as<float>();
  // One chunk of rows per partial, so that the sum does not depend on how many threads really ran.
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int64_t chunk = 0; chunk < threads; ++chunk) {
    float* partial = with_weight ? partials + chunk * cols : nullptr;
    if (with_weight) std::fill(partial, partial + cols, 0.0f);
    for (int64_t row = rows * chunk / threads; row < rows * (chunk + 1) / threads; ++row) {
      const T* x = a.x.as<T>() + row * a.x.row_stride;
      const T* dy = a.dy.as<T>() + row * a.dy.row_stride;
      T* dx = a.dx.as<T>() + row * a.dx.row_stride;
      const float rstd = a.rstd.as<float>()[row];
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < cols; ++i) dot += to_float(dy[i]) * to_float(weight[i]) * to_float(x[i]);
      const float scale = dot / static_cast<float>(cols) * rstd * rstd;
      if (with_weight) {
#pragma omp simd
        for (int64_t i = 0; i < cols; ++i) partial[i] += to_float(dy[i]) * to_float(x[i]) * rstd;
      }
      if (a.residual_gradient.data != nullptr) {
        const T* residual = a.residual_gradient.as<T>() + row * a.residual_gradient.row_stride;
#pragma omp simd
        for (int64_t i = 0; i < cols; ++i) {
          const float d = (to_float(dy[i]) * to_float(weight[i]) - to_float(x[i]) * scale) * rstd;
          dx[i] = from_float<T>(to_float(residual[i]) + d);
        }
      } else {
#pragma omp simd
        for (int64_t i = 0; i < cols; ++i) {
          dx[i] = from_float<T>((to_float(dy[i]) * to_float(weight[i]) - to_float(x[i]) * scale) * rstd);
        }
      }
    }
  }
  if (!with_weight) return;
  float* dweight = a.dweight.as<float>();
  for (int64_t i = 0; i < cols; ++i) {
    float sum = a.accumulate ? dweight[i] : 0.0f;
    for (int64_t chunk = 0; chunk < threads; ++chunk) sum += partials[chunk * cols + i];
    dweight[i] = sum;
  }
}

}  // namespace

void rms_norm_forward(Context& ctx, const RmsNormForward& a) {
  YOKE_FOR_TYPE(a.x.dtype, T, forward<T>(a, ctx.device.threads()));
}

void rms_norm_backward(Context& ctx, const RmsNormBackwardKernel& a) {
  YOKE_FOR_TYPE(a.x.dtype, T, backward<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
