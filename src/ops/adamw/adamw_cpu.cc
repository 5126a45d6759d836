#include "ops/adamw/adamw_kernels.h"
#include "ops/cpu_moment.h"

namespace yoke::YOKE_ISA {

void adamw(Context& ctx, const AdamWKernel& a) {
  const float beta1 = a.beta1, beta2 = a.beta2, rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
  const float unbias_m = a.unbias_m, unbias_v = a.unbias_v, epsilon = a.epsilon, scale = a.gradient_scale;
  const float rate = a.learning_rate, decay = a.learning_rate * a.weight_decay;
  const bool random_moments = a.m.values.dtype == DType::bf16 || a.v.values.dtype == DType::bf16;
  for_blocks(ctx.device.threads(), {1, a.weights.master.elements()}, [=, &a](int64_t, int64_t begin, int64_t count) {
    float gradient_buffer[kBlock], master_buffer[kBlock], m_buffer[kBlock], v_buffer[kBlock];
    const float* gradient = load_block(a.gradient, begin, count, gradient_buffer);
    float* master = load_weights(a.weights, begin, count, master_buffer);
    float* m = load_moment(a.m, *a.m_map, begin, count, m_buffer);
    float* v = load_moment(a.v, *a.v_map, begin, count, v_buffer);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float g = gradient[i] * scale, w = master[i];
      const float m1 = beta1 * m[i] + rest1 * g;
      const float v1 = beta2 * v[i] + rest2 * g * g;
      m[i] = m1;
      v[i] = v1;
      master[i] = w - (rate * (m1 * unbias_m / (std::sqrt(v1 * unbias_v) + epsilon)) + decay * w);
    }
    uint32_t bits[kBlock];
    if (random_moments) random_bits(a.random, a.places, begin, count, 0, bits);
    store_moment(m, a.m, *a.m_map, begin, count, bits, 0);
    store_moment(v, a.v, *a.v_map, begin, count, bits, 16);
    store_weights(master, a.weights, begin, count, a.random, a.places);
  });
}

}  // namespace yoke::YOKE_ISA
