// Root-mean-square normalisation with an optional residual addition in front (Zhang, Sennrich 2019).
//
//   x'  = x + delta                          (delta absent: x' = x)
//   r   = 1 / sqrt(mean(x'^2) + epsilon)     one per row
//   y   = x' * r * weight
//
// A row is a token, or with `groups` > 1 each of that many equal parts of it (the heads, for QK-norm). Statistics are
// fp32 whatever the element type.
#pragma once

#include "device/context.h"

namespace yoke {

struct RmsNormForward {
  TensorView x;             ///< [rows, groups * cols] f32 | bf16 | f16
  TensorView delta;         ///< as x, or absent
  TensorView weight;        ///< [cols], dtype of x
  TensorView residual_out;  ///< as x: x'; may be x; absent exactly when delta is
  TensorView y;             ///< as x; may be x when there is no delta
  TensorView rstd;          ///< [rows * groups] f32
  float epsilon = 1e-5f;
  int64_t groups = 1;
};

/// dx' = (dy * weight - x' * r^2 * mean(dy * weight * x')) * r, and dweight = sum over rows of dy * x' * r.
/// x' feeds the residual stream as well: dx = dx' + residual_gradient when that is present.
struct RmsNormBackward {
  TensorView dy;                 ///< [rows, groups * cols]
  TensorView x;                  ///< as dy: x' of the forward
  TensorView weight;             ///< [cols]
  TensorView rstd;               ///< [rows * groups] f32
  TensorView residual_gradient;  ///< as dy, or absent
  TensorView dx;                 ///< as dy; may be dy, x or residual_gradient
  TensorView dweight;            ///< [cols] f32; absent for frozen weights
  bool accumulate = false;       ///< dweight += instead of =
  int64_t groups = 1;
};

void rms_norm_forward(Context& ctx, const RmsNormForward& args);
/// Workspace: threads x cols fp32.
void rms_norm_backward(Context& ctx, const RmsNormBackward& args);

}  // namespace yoke
