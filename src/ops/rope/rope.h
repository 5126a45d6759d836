// Rotary position embedding (Su et al. 2021) in Hugging Face's layout: element i of a head turns with element i + d/2.
//
//   y[i]       = x[i] * cos - x[i + d/2] * sin
//   y[i + d/2] = x[i + d/2] * cos + x[i] * sin      cos, sin of position * frequency[i]
//
// Its gradient is the rotation by the opposite angle: `inverse`.
#pragma once

#include "device/context.h"

namespace yoke {

struct Rope {
  TensorView x;          ///< [tokens, heads * head_dim] f32 | bf16 | f16
  TensorView positions;  ///< [tokens] i32, each in [0, rows of table)
  TensorView table;      ///< [positions, head_dim] f32: head_dim/2 cosines, then head_dim/2 sines
  TensorView y;          ///< [tokens, heads * head_dim]; may be x
  int64_t head_dim = 0;
  bool inverse = false;
};

void rope(Context& ctx, const Rope& args);

}  // namespace yoke
