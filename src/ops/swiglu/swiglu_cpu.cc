#include "ops/cpu_math.h"
#include "ops/swiglu/swiglu_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

template <class T>
void forward(const SwigluForward& a, int threads) {
  const int64_t mlp = a.y.cols();
  for_blocks(threads, {a.y.rows(), mlp}, [&](int64_t row, int64_t begin, int64_t n) {
    float gate_buffer[kBlock], up_buffer[kBlock];
    const T* gate_up = a.gate_up.as<T>() + row * a.gate_up.row_stride + begin;
    T* out = a.y.as<T>() + row * a.y.row_stride + begin;
    const float* gate = widen(gate_up, gate_buffer, n);
    const float* up = widen(gate_up + mlp, up_buffer, n);
    float* y = block_of(out, gate_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + fast_exp(-gate[i])) * up[i];
    narrow(y, out, n);
  });
}

template <class T>
void backward(const SwigluBackward& a, int threads) {
  const int64_t mlp = a.dy.cols();
  for_blocks(threads, {a.dy.rows(), mlp}, [&](int64_t row, int64_t begin, int64_t n) {
    float dy_buffer[kBlock], gate_buffer[kBlock], up_buffer[kBlock];
    const T* gate_up = a.gate_up.as<T>() + row * a.gate_up.row_stride + begin;
    T* out = a.dgate_up.as<T>() + row * a.dgate_up.row_stride + begin;
    const float* dy = widen(a.dy.as<T>() + row * a.dy.row_stride + begin, dy_buffer, n);
    const float* gate = widen(gate_up, gate_buffer, n);
    const float* up = widen(gate_up + mlp, up_buffer, n);
    float* dgate = block_of(out, gate_buffer);
    float* dup = block_of(out + mlp, up_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float g = gate[i], u = up[i], d = dy[i];
      const float sigmoid = 1.0f / (1.0f + fast_exp(-g));
      dgate[i] = d * u * sigmoid * (1.0f + g * (1.0f - sigmoid));
      dup[i] = d * g * sigmoid;
    }
    narrow(dgate, out, n);
    narrow(dup, out + mlp, n);
  });
}

}  // namespace

void swiglu_forward(Context& ctx, const SwigluForward& a) {
  YOKE_FOR_TYPE(a.y.dtype, T, forward<T>(a, ctx.device.threads()));
}

void swiglu_backward(Context& ctx, const SwigluBackward& a) {
  YOKE_FOR_TYPE(a.dy.dtype, T, backward<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
