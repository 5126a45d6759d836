// SwiGLU (Shazeer 2020): y = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
#pragma once

#include "device/context.h"

namespace yoke {

struct SwigluForward {
  TensorView gate_up;  ///< [tokens, 2 * mlp]: gate, then up
  TensorView y;        ///< [tokens, mlp]
};

struct SwigluBackward {
  TensorView dy;        ///< [tokens, mlp]
  TensorView gate_up;   ///< [tokens, 2 * mlp]
  TensorView dgate_up;  ///< [tokens, 2 * mlp]; may be gate_up
};

void swiglu_forward(Context& ctx, const SwigluForward& args);
void swiglu_backward(Context& ctx, const SwigluBackward& args);

}  // namespace yoke
