#include "ops/cpu_moment.h"
#include "ops/sgd/sgd_kernels.h"

namespace yoke::YOKE_ISA {

void sgd(Context& ctx, const SgdKernel& a) {
  const float momentum = a.momentum, scale = a.gradient_scale;
  const float rate = a.learning_rate, decay = a.learning_rate * a.weight_decay;
  const bool has_moment = !a.m.values.absent();
  for_blocks(ctx.device.threads(), {1, a.weights.master.elements()}, [=, &a](int64_t, int64_t begin, int64_t count) {
    float gradient_buffer[kBlock], master_buffer[kBlock], m_buffer[kBlock];
    const float* gradient = load_block(a.gradient, begin, count, gradient_buffer);
    float* master = load_weights(a.weights, begin, count, master_buffer);
    if (!has_moment) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) master[i] -= rate * (gradient[i] * scale) + decay * master[i];
    } else {
      float* m = load_moment(a.m, *a.map, begin, count, m_buffer);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const float m1 = momentum * m[i] + gradient[i] * scale;
        m[i] = m1;
        master[i] -= rate * m1 + decay * master[i];
      }
      uint32_t bits[kBlock];
      if (a.m.values.dtype == DType::bf16) random_bits(a.random, a.places, begin, count, 0, bits);
      store_moment(m, a.m, *a.map, begin, count, bits, 0);
    }
    store_weights(master, a.weights, begin, count, a.random, a.places);
  });
}

}  // namespace yoke::YOKE_ISA
