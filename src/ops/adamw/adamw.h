// AdamW with bias correction and decoupled weight decay (Kingma, Ba 2015; Loshchilov, Hutter 2019), fused with
// unscaling, clipping and the rounding of the compute copy. All arithmetic is fp32.
//
//   g  = gradient * gradient_scale
//   m  = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//   w -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon) + lr * weight_decay * w
#pragma once

#include "device/context.h"

namespace yoke {

struct AdamW {
  TensorView master;    ///< [n] f32
  TensorView weight;    ///< [n] bf16 | f16: the rounded copy of master; absent when computing in fp32
  TensorView gradient;  ///< [n] f32
  TensorView m, v;      ///< [n] f32
  float learning_rate = 0;
  float beta1 = 0.9f, beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0;
  float gradient_scale = 1;  ///< clip factor / loss scale
  int64_t step = 1;          ///< 1 for the first update
};

void adamw(Context& ctx, const AdamW& args);

}  // namespace yoke
