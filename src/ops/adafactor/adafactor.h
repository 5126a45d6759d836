// Adafactor (Shazeer, Stern 2018) without first moment and with a learning rate from outside: AdamW's second moment of
// a matrix kept as one number for each row and each column. fp32 arithmetic, means in fp64.
//
//   g  = gradient * gradient_scale,   beta = 1 - step^-0.8,   s = g^2 + 1e-30
//   matrix: R = beta R + (1 - beta) mean of s over columns [rows],   C likewise over rows [cols]
//           u = g / sqrt(R C / mean(R))
//   vector: v = beta v + (1 - beta) s,   u = g / sqrt(v)
//   w -= lr * (u / max(1, root mean square of u) + weight_decay * w)
#pragma once

#include "ops/moment.h"

namespace yoke {

struct Adafactor {
  OptimizedWeights weights;  ///< [rows, cols]; rows is 1 for a vector
  TensorView gradient;       ///< [rows, cols] f32 | bf16
  TensorView row, col;       ///< [rows], [cols] f32: R and C of a matrix, absent for a vector
  TensorView v;              ///< [cols] f32, of a vector
  float learning_rate = 0;
  float weight_decay = 0;
  float gradient_scale = 1;  ///< clip factor / loss scale
  int64_t step = 1;          ///< 1 for the first update
  RandomStream random;       ///< of this tensor and step; used where weights are rounded at random
};

/// The result does not depend on the number of threads. Workspace: one fp64 for each row.
void adafactor(Context& ctx, const Adafactor& args);

}  // namespace yoke
