// Softmax cross-entropy over a chunk of tokens; writes the gradient where the logits were.
//
//   loss[t]    = log(sum_j exp(logits[t, j])) - logits[t, targets[t]]
//   dlogits[t] = (softmax(logits[t]) - onehot(targets[t])) * scale
//
// Tokens whose target is negative have loss 0 and gradient 0.
#pragma once

#include "device/context.h"

namespace yoke {

struct CrossEntropy {
  TensorView logits;   ///< [tokens, vocabulary] f32 | bf16 | f16
  TensorView targets;  ///< [tokens] i32, each in [0, vocabulary) or negative
  TensorView loss;     ///< [tokens] f32
  TensorView dlogits;  ///< [tokens, vocabulary], dtype of logits; may be logits; absent: loss only
  float scale = 1;     ///< 1 / supervised tokens of the whole global batch, times the loss scale
};

/// Sums and exponentials are fp32. An infinite or NaN logit gives a NaN loss, never a crash.
void cross_entropy(Context& ctx, const CrossEntropy& args);

}  // namespace yoke
