// Stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013) and decoupled weight decay, fused with
// unscaling, clipping and the rounding of the compute copy. All arithmetic is fp32, whatever the formats.
//
//   g  = gradient * gradient_scale
//   m  = momentum m + g                  (m = g where no moment is kept)
//   w -= lr * (m + weight_decay * w)
#pragma once

#include "ops/moment.h"

namespace yoke {

struct Sgd {
  OptimizedWeights weights;  ///< [n]
  TensorView gradient;       ///< [n] f32 | bf16
  MomentTensor m;            ///< [n], or absent: no momentum; 8-bit codes are of the signed map
  float learning_rate = 0;
  float momentum = 0.9f;
  float weight_decay = 0;
  float gradient_scale = 1;  ///< clip factor / loss scale
  RandomStream random;       ///< of this tensor and step; used where something is rounded at random
  ElementPlaces places;      ///< whose numbers those are, where this is a part of a tensor
};

/// The result does not depend on the number of threads.
void sgd(Context& ctx, const Sgd& args);

}  // namespace yoke
