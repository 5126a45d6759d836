#include "ops/cpu_kernel.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

/// Row number `row` when every token is `groups` rows.
template <class T>
T* row_of(const TensorView& t, int64_t row, int64_t groups) {
  return t.as<T>() + row / groups * t.row_stride + row % groups * (t.shape.cols() / groups);
}

template <class T>
void forward(const RmsNormForward& a, int threads) {
  const int64_t groups = a.groups, rows = a.x.rows() * groups, cols = a.x.cols() / groups;
  const T* weight = a.weight.as<T>();
  const bool add = a.delta.data != nullptr;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = row_of<T>(a.x, row, groups);
    if (add) {
      const T* delta = row_of<T>(a.delta, row, groups);
      T* sum = row_of<T>(a.residual_out, row, groups);
#pragma omp simd
      for (int64_t i = 0; i < cols; ++i) sum[i] = from_float<T>(to_float(x[i]) + to_float(delta[i]));
      x = sum;
    }
    float square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < cols; ++i) square += to_float(x[i]) * to_float(x[i]);
    const float rstd = 1.0f / std::sqrt(square / static_cast<float>(cols) + a.epsilon);
    a.rstd.as<float>()[row] = rstd;
    T* y = row_of<T>(a.y, row, groups);
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) y[i] = from_float<T>(to_float(x[i]) * rstd * to_float(weight[i]));
  }
}

template <class T>
void backward(const RmsNormBackwardKernel& a, int threads) {
  const int64_t groups = a.groups, rows = a.x.rows() * groups, cols = a.x.cols() / groups;
  const T* weight = a.weight.as<T>();
  const bool with_weight = a.dweight.data != nullptr;
  float* partials = a.partial.as<float>();
  // One chunk of rows per partial, so that the sum does not depend on how many threads really ran.
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int64_t chunk = 0; chunk < threads; ++chunk) {
    float* partial = with_weight ? partials + chunk * cols : nullptr;
    if (with_weight) std::fill(partial, partial + cols, 0.0f);
    for (int64_t row = rows * chunk / threads; row < rows * (chunk + 1) / threads; ++row) {
      const T* x = row_of<T>(a.x, row, groups);
      const T* dy = row_of<T>(a.dy, row, groups);
      T* dx = row_of<T>(a.dx, row, groups);
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
        const T* residual = row_of<T>(a.residual_gradient, row, groups);
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
  add_partials(partials, threads, cols, a.accumulate, a.dweight.as<float>());
}

}  // namespace

void rms_norm_forward(Context& ctx, const RmsNormForward& a) {
  YOKE_FOR_TYPE(a.x.dtype, T, forward<T>(a, ctx.device.threads()));
}

void rms_norm_backward(Context& ctx, const RmsNormBackwardKernel& a) {
  YOKE_FOR_TYPE(a.x.dtype, T, backward<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
