// One transformer block of the LLaMA family, all options included. Forward and backward are straight lists of calls.
#pragma once

#include "model/activations.h"
#include "model/parameters.h"
#include "model/store.h"
#include "ops/attention/attention.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace yoke {

/// Keys and values of one sequence, for generation.
struct KeyValueCache {
  std::vector<TensorView> k, v;  ///< per layer [capacity, k d], k rotated
  int64_t filled = 0;            ///< tokens before the ones that are being computed
};

/// What a micro-batch brings besides the residual stream.
struct BlockInputs {
  int64_t batch = 0;                     ///< rows
  int64_t length = 0;                    ///< tokens per row
  TensorView positions;                  ///< [T] i32
  TensorView key_begin;                  ///< [T] i32
  TensorView rope;                       ///< [positions, d] f32
  const KeyValueCache* cache = nullptr;  ///< generation: the tokens append to it (batch 1) and see all of it
};

class Block {
 public:
  Block(const ModelConfig& config, const ParameterTable& parameters, int64_t layer);

  /// residual + delta enters (delta absent: residual is a.input already); a.mid + a.delta leaves.
  void forward(Context& ctx, const BlockInputs& in, const TensorView& residual, const TensorView& delta,
               const WeightStore& weights, BlockActivations& a) const;

  /// Writes again what the table calls recomputed, from what it calls saved.
  void recompute(Context& ctx, const BlockInputs& in, const WeightStore& weights, const ActivationTable& table,
                 BlockActivations& a) const;

  /// Backward, first the MLP's half, then attention's. `gradient` [T, h]: of the loss with respect to what leaves the
  /// half, replaced by that of what enters it. Activations are overwritten with gradients; after mlp_backward() those
  /// of BlockPart::mlp are not needed any more.
  void mlp_backward(Context& ctx, const WeightStore& weights, GradientStore& gradients, BlockActivations& a,
                    const TensorView& gradient) const;
  void attention_backward(Context& ctx, const BlockInputs& in, const WeightStore& weights, GradientStore& gradients,
                          BlockActivations& a, const TensorView& gradient) const;

 private:
  void project_qkv(Context& ctx, const BlockInputs& in, const WeightStore& weights, BlockActivations& a) const;
  void attend(Context& ctx, const BlockInputs& in, BlockActivations& a) const;
  void project_attention(Context& ctx, const WeightStore& weights, BlockActivations& a) const;
  void normalise(Context& ctx, const WeightStore& weights, int norm, const TensorView& residual,
                 const TensorView& delta, const TensorView& sum, const TensorView& y, const TensorView& rstd) const;
  /// `args` without weight and its gradient, which come from the stores.
  void normalise_backward(Context& ctx, const WeightStore& weights, GradientStore& gradients, int norm,
                          RmsNormBackward args) const;

  size_t row(int relative) const { return first_row_ + static_cast<size_t>(relative); }
  TensorView q(const BlockActivations& a) const;
  TensorView k(const BlockActivations& a) const;
  TensorView v(const BlockActivations& a) const;

  const ModelConfig& config_;
  BlockRows rows_;
  size_t first_row_;
  int64_t layer_;
};

/// y = x W^T (+ bias): weights are stored [outputs, inputs].
void linear_forward(Context& ctx, const TensorView& x, const TensorView& weight, const TensorView& bias,
                    const TensorView& y);
/// dW (+)= dy^T x into the store, which is not told that the row is complete.
void linear_weight_backward(Context& ctx, const TensorView& x, const TensorView& dy, GradientStore& gradients,
                            size_t row);
/// dW (+)= dy^T x into the store; dx = dy W unless dx is absent. Completes the row.
void linear_backward(Context& ctx, const TensorView& x, const TensorView& weight, const TensorView& dy,
                     const TensorView& dx, GradientStore& gradients, size_t row);

/// The attention shape of this model for rows of `queries` tokens against `keys`.
AttentionShape attention_shape(const ModelConfig& config, int64_t layer, int64_t batch, int64_t queries, int64_t keys);

}  // namespace yoke
