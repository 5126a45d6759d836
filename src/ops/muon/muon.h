// Muon (Jordan et al. 2024): momentum whose matrix is replaced by a nearby orthogonal one, for the matrices inside of
// blocks, with the update's size of Moonlight (Liu et al. 2025, "Muon is scalable for LLM training"). fp32 arithmetic.
//
//   g  = gradient * gradient_scale
//   m  = momentum m + g
//   o  = orthogonalised(g + momentum m)                      (Nesterov), part by part
//   w -= lr * (0.2 sqrt(max(rows, cols)) o + weight_decay w) (rows, cols of the part)
//
// 0.2 sqrt(max(rows, cols)) makes the root mean square of an update of full rank about 0.2, as AdamW's is, so that
// learning rate and weight decay of AdamW carry over. orthogonalised(x) is x / (|x| + 1e-7) after five steps of the
// Newton-Schulz iteration x <- a x + (b x x^T + c (x x^T)^2) x with Jordan's a, b, c = 3.4445, -4.7750, 2.0315, which
// brings every singular value that isn't tiny to between about 0.7 and 1.2.
#pragma once

#include <span>

#include "ops/moment.h"

namespace yoke {

struct Muon {
  OptimizedWeights weights;        ///< [rows, cols]
  TensorView gradient;             ///< [rows, cols] f32 | bf16
  MomentTensor m;                  ///< [rows * cols]; 8-bit codes are of the signed map
  std::span<const int64_t> parts;  ///< rows of each matrix of a fused tensor; they add up to its rows
  float learning_rate = 0;
  float momentum = 0.95f;
  float weight_decay = 0;
  float gradient_scale = 1;  ///< clip factor / loss scale
  RandomStream random;       ///< of this tensor and step; used where something is rounded at random
};

/// Workspace: fp32, the tensor once; its largest part once more and twice the square of that one's smaller side; and
/// that of matmul and sum_squares.
void muon(Context& ctx, const Muon& args);

inline constexpr int kNewtonSchulzSteps = 5;
inline constexpr double kNewtonSchulz[3] = {3.4445, -4.7750, 2.0315};  ///< a, b, c

}  // namespace yoke
