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

/// Where the vocabulary's columns lie on several ranks (Shoeybi et al. 2019), each first sums up its own, ...
struct CrossEntropySums {
  static constexpr int64_t kSums = 4;
  TensorView logits;   ///< [tokens, columns] f32 | bf16 | f16
  TensorView targets;  ///< [tokens] i32 in the whole vocabulary, or negative
  TensorView sums;     ///< [tokens, 4] f64: largest logit, sum of exp(logit - largest), the target's logit or 0, and
                       ///< 0, or NaN where a logit is infinite or NaN
  int64_t first = 0;   ///< id of column 0
  int64_t vocabulary = 0;  ///< columns at or beyond this id are padding and don't count
};
void cross_entropy_sums(Context& ctx, const CrossEntropySums& args);

/// ... then every rank has everybody's sums and completes the loss, and the gradient of its own columns.
struct CrossEntropyShard {
  TensorView logits;   ///< [tokens, columns]
  TensorView targets;  ///< [tokens] i32
  TensorView sums;     ///< [ranks, tokens, 4] f64
  TensorView loss;     ///< [tokens] f32: of the whole vocabulary
  TensorView dlogits;  ///< as logits, may be logits; 0 in columns of padding; absent: loss only
  float scale = 1;
  int64_t first = 0;
  int64_t vocabulary = 0;
};
void cross_entropy_shard(Context& ctx, const CrossEntropyShard& args);

}  // namespace yoke
