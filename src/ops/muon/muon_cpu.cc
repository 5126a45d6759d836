#include "ops/cpu_moment.h"
#include "ops/muon/muon_kernels.h"

namespace yoke::YOKE_ISA {

void muon_momentum(Context& ctx, const MuonMomentum& a) {
  const float momentum = a.momentum, scale = a.gradient_scale;
  for_blocks(ctx.device.threads(), {1, a.x.elements()}, [=, &a](int64_t, int64_t begin, int64_t count) {
    float gradient_buffer[kBlock], m_buffer[kBlock];
    const float* gradient = load_block(a.gradient, begin, count, gradient_buffer);
    float* m = load_moment(a.m, *a.map, begin, count, m_buffer);
    float* x = a.x.as<float>() + begin;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float g = gradient[i] * scale;
      const float m1 = momentum * m[i] + g;
      m[i] = m1;
      x[i] = g + momentum * m1;
    }
    uint32_t bits[kBlock];
    if (a.m.values.dtype == DType::bf16) random_bits(a.random, begin, 0, bits);
    store_moment(m, a.m, *a.map, begin, count, bits, 0);
  });
}

void muon_normalise(Context& ctx, const MuonNormalise& a) {
  const auto inverse = static_cast<float>(1 / (std::sqrt(*a.square.as<double>()) + 1e-7));
  for_blocks(ctx.device.threads(), {1, a.x.elements()}, [=, &a](int64_t, int64_t begin, int64_t count) {
    const float* x = a.x.as<float>() + begin;
    float* y = a.y.as<float>() + begin;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] * inverse;
  });
}

void muon_polynomial(Context& ctx, const MuonPolynomial& p) {
  const float a = p.a, b = p.b, c = p.c;
  for_blocks(ctx.device.threads(), {p.x.rows(), p.x.cols()}, [=, &p](int64_t row, int64_t begin, int64_t count) {
    const float* x = p.x.as<float>() + row * p.x.row_stride + begin;
    float* y = p.y.as<float>() + row * p.y.row_stride + begin;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = b * x[i] + c * y[i];
    if (row >= begin && row < begin + count) y[row - begin] += a;
  });
}

void muon_apply(Context& ctx, const MuonApply& a) {
  const int64_t cols = a.x.cols();
  const float decay = a.learning_rate * a.weight_decay;
  for_blocks(ctx.device.threads(), {1, a.x.elements()}, [=, &a](int64_t, int64_t begin, int64_t count) {
    float master_buffer[kBlock];
    float* master = load_weights(a.weights, begin, count, master_buffer);
    const float* x = a.x.as<float>() + begin;
    int64_t part_begin = 0;
    for (const int64_t rows : a.parts) {  // a block may reach over the end of a part
      const int64_t part_end = part_begin + rows * cols;
      const int64_t first = std::max(part_begin, begin) - begin, last = std::min(part_end, begin + count) - begin;
      const auto side = static_cast<float>(std::max(rows, cols));
      const float size = a.learning_rate * 0.2f * std::sqrt(side);
#pragma omp simd
      for (int64_t i = first; i < last; ++i) master[i] -= size * x[i] + decay * master[i];
      part_begin = part_end;
    }
    store_weights(master, a.weights, begin, count, a.random);
  });
}

}  // namespace yoke::YOKE_ISA
