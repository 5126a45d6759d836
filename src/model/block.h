// One transformer block of the LLaMA family, all options included. Forward and backward are straight lists of calls.
#pragma once

#include "model/activations.h"
#include "model/parameters.h"
#include "model/store.h"
#include "model/tensor_parallel.h"
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
  Communicator* tensor = nullptr;        ///< the ranks that share this block; null: none
  Communicator* context = nullptr;       ///< ranks that share the sequences: rows are chunks (model/ring_attention.h)
};

/// Which gradients a backward pass computes. Pipelines with a zero-bubble schedule compute those of inputs, for which
/// other ranks wait, first, and those of the products' weights when there is nothing else to do. Gradients of norms and
/// biases belong to the first pass.
enum class BackwardPass { whole, inputs };

class Block {
 public:
  /// `config`: with the sizes of this rank, see ModelConfig::local.
  Block(const ModelConfig& config, const ParameterTable& parameters, int64_t layer);

  /// residual + delta enters (delta absent: residual is a.input already); a.mid + a.delta leaves.
  void forward(Context& ctx, const BlockInputs& in, const TensorView& residual, const TensorView& delta,
               const WeightStore& weights, BlockActivations& a) const;

  /// Writes again what the table calls recomputed, from what it calls saved.
  void recompute(Context& ctx, const BlockInputs& in, const WeightStore& weights, const ActivationTable& table,
                 BlockActivations& a) const;

  /// Backward, first the MLP's half, then attention's. `gradient` [S, h]: of the loss with respect to what leaves the
  /// half; `dx` [S, h]: of what enters it. Activations are overwritten with gradients; after a whole mlp_backward()
  /// those of BlockPart::mlp are not needed any more, and dx may be `gradient`.
  ///
  /// BackwardPass::inputs leaves in place what weight_backward() needs: inputs and output gradients of the products. dx
  /// of the MLP's half must be a.mid and that of attention's half may be a.input; `gradient` of the MLP's half stays.
  void mlp_backward(Context& ctx, const BlockInputs& in, const WeightStore& weights, GradientStore& gradients,
                    BlockActivations& a, const TensorView& gradient, const TensorView& dx, BackwardPass pass) const;
  void attention_backward(Context& ctx, const BlockInputs& in, const WeightStore& weights, GradientStore& gradients,
                          BlockActivations& a, const TensorView& gradient, const TensorView& dx,
                          BackwardPass pass) const;
  /// After BackwardPass::inputs of both halves: the gradients that it left out. `gradient` [S, h]: as mlp_backward()
  /// got it.
  void weight_backward(Context& ctx, const BlockInputs& in, GradientStore& gradients, const BlockActivations& a,
                       const TensorView& gradient) const;

 private:
  void project_qkv(Context& ctx, const BlockInputs& in, const WeightStore& weights, BlockActivations& a) const;
  void attend(Context& ctx, const BlockInputs& in, BlockActivations& a) const;
  void project_attention(Context& ctx, const BlockInputs& in, const WeightStore& weights, BlockActivations& a) const;
  void project_mlp(Context& ctx, const BlockInputs& in, const WeightStore& weights, BlockActivations& a) const;
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
/// dx = dy W unless dx is absent; and, with BackwardPass::whole, dW (+)= dy^T x into the store before that, which
/// completes the row.
void linear_backward(Context& ctx, const TensorView& x, const TensorView& weight, const TensorView& dy,
                     const TensorView& dx, GradientStore& gradients, size_t row, BackwardPass pass);

/// The attention shape of this model for rows of `queries` tokens against `keys`.
AttentionShape attention_shape(const ModelConfig& config, int64_t layer, int64_t batch, int64_t queries, int64_t keys);

}  // namespace yoke
