#pragma once

#include "ops/muon/muon.h"

namespace yoke {

/// m = momentum m + g; x = g + momentum m.
struct MuonMomentum {
  TensorView gradient;  // [n]
  MomentTensor m;       // [n]
  TensorView x;         // [n] f32
  float momentum = 0, gradient_scale = 1;
  RandomStream random;
  const DynamicMap* map = nullptr;
};
YOKE_KERNELS(muon_momentum, MuonMomentum);

/// y = x / (sqrt(square) + 1e-7).
struct MuonNormalise {
  TensorView x, y;    // [n] f32
  TensorView square;  // [1] f64
};
YOKE_KERNELS(muon_normalise, MuonNormalise);

/// y = a I + b x + c y.
struct MuonPolynomial {
  TensorView x, y;  // [n, n] f32
  float a = 0, b = 0, c = 0;
};
YOKE_KERNELS(muon_polynomial, MuonPolynomial);

/// w -= size x + decay w.
struct MuonApply {
  OptimizedWeights weights;  // [rows, cols]
  TensorView x;              // [rows, cols] f32
  std::span<const int64_t> parts;
  float learning_rate = 0, weight_decay = 0;
  RandomStream random;
};
YOKE_KERNELS(muon_apply, MuonApply);

}  // namespace yoke
