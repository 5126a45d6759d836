// AdamW with bias correction and decoupled weight decay (Kingma, Ba 2015; Loshchilov, Hutter 2019), fused with
// unscaling, clipping and the rounding of the compute copy. All arithmetic is fp32, whatever the formats.
//
//   g  = gradient * gradient_scale
//   m  = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//   w -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon) + lr * weight_decay * w
//
// The update uses m and v before they are rounded to their format.
#pragma once

#include "ops/moment.h"

namespace yoke {

struct AdamW {
  OptimizedWeights weights;  ///< [n]
  TensorView gradient;       ///< [n] f32 | bf16
  MomentTensor m, v;         ///< [n]; 8-bit codes are of the signed map for m, of the unsigned one for v
  float learning_rate = 0;
  float beta1 = 0.9f, beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0;
  float gradient_scale = 1;  ///< clip factor / loss scale
  int64_t step = 1;          ///< 1 for the first update
  RandomStream random;       ///< of this tensor and step; used where something is rounded at random
  ElementPlaces places;      ///< whose numbers those are, where this is a part of a tensor
};

/// The result does not depend on the number of threads.
void adamw(Context& ctx, const AdamW& args);

}  // namespace yoke
