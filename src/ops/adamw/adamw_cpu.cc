#include "ops/adamw/adamw_kernels.h"
#include "ops/cpu_math.h"

namespace yoke::YOKE_ISA {
namespace {

/// T: type of the compute copy; float when there is none.
template <class T>
void update(const AdamWKernel& a, int threads) {
  const float beta1 = a.beta1, beta2 = a.beta2, rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
  const float unbias_m = a.unbias_m, unbias_v = a.unbias_v, epsilon = a.epsilon, scale = a.gradient_scale;
  const float rate = a.learning_rate, decay = a.learning_rate * a.weight_decay;
  for_blocks(threads, {1, a.master.elements()}, [=, &a](int64_t, int64_t begin, int64_t count) {
    const float* gradient = a.gradient.as<float>() + begin;
    float* master = a.master.as<float>() + begin;
    float* m = a.m.as<float>() + begin;
    float* v = a.v.as<float>() + begin;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float g = gradient[i] * scale, w = master[i];
      const float m1 = beta1 * m[i] + rest1 * g;
      const float v1 = beta2 * v[i] + rest2 * g * g;
      m[i] = m1;
      v[i] = v1;
      master[i] = w - (rate * (m1 * unbias_m / (std::sqrt(v1 * unbias_v) + epsilon)) + decay * w);
    }
    if constexpr (!std::is_same_v<T, float>) narrow(master, a.weight.as<T>() + begin, count);
  });
}

}  // namespace

void adamw(Context& ctx, const AdamWKernel& a) {
  const DType copy = a.weight.data == nullptr ? DType::f32 : a.weight.dtype;
  YOKE_FOR_TYPE(copy, T, update<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
