// The device side of training: everything that lives in the arena, and one optimizer step. The same code runs on the
// dry device, which is how a run's memory is known before it starts.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/batch.h"
#include "model/transformer.h"
#include "train/optimizer.h"

namespace yoke {

struct EngineOptions {
  DType compute = DType::f32;   ///< f32, bf16 or f16
  int64_t micro_batch = 1;      ///< sequences per forward pass at most
  int64_t sequence_length = 1;  ///< tokens per sequence
  int64_t micro_batches = 1;    ///< per optimizer step at most
  int64_t loss_chunk = 0;       ///< tokens whose logits exist at a time; 0: chosen by size
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = -1;  ///< -1: all
  OptimizerOptions optimizer;
  bool fp32_master = true;  ///< false, with bf16 only: bf16 weights are all there is, updates are rounded at random
  DType gradients = DType::f32;    ///< bf16, with bf16 only: those of norms and biases stay f32
  bool evaluates = true;           ///< validation is part of the plan
  bool consume_gradients = false;  ///< one micro-batch a step, not f16: see Engine::step
};

struct StepResult {
  double loss_sum = 0;  ///< over supervised tokens
  int64_t supervised = 0;
  double gradient_norm = 0;            ///< before clipping, unscaled
  bool finite = true;                  ///< false: the update was skipped (of consumed gradients: where not finite)
  int64_t first_bad_micro_batch = -1;  ///< the first whose loss is not finite
  std::vector<double> row_norms;       ///< gradient norm of each parameter row
  double loss() const { return loss_sum / static_cast<double>(supervised); }
};

class Engine {
 public:
  /// Takes all its memory from ctx.arena, which has to outlive it.
  Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options);

  const Transformer& transformer() const { return transformer_; }
  const EngineOptions& options() const { return options_; }
  /// Random weights by the config's initializer_range.
  void initialise(Context& ctx, uint64_t seed);
  /// To be called after master() was written from outside: rounds the compute copies, if there are any.
  void refresh_weights(Context& ctx);

  /// The weights that training changes, f32, or bf16 without fp32_master: one view a row of transformer().parameters().
  const ParameterBuffers& master() const { return master_; }
  const OptimizerState& optimizer_state() const { return optimizer_state_; }
  /// Of the last step; not for consumed gradients.
  const ParameterBuffers& gradients() const {
    YOKE_ASSERT(!options_.consume_gradients);
    return gradients_;
  }
  const WeightStore& weights() const { return weight_store_; }
  /// As before the first update.
  void clear_optimizer(Context& ctx) { optimizer_state_.clear(ctx); }

  /// Forward and backward of all micro-batches and the update. Loss and gradient are those of one big batch: the sum of
  /// token losses over the supervised tokens of all micro-batches. A non-finite loss or gradient skips the update.
  ///
  /// With consume_gradients a parameter is updated as soon as backward has its gradient, whose memory then serves the
  /// next one. Its share of the clipping norm is clip_norm sqrt(elements / all elements), so that the norm of the whole
  /// clipped gradient is at most clip_norm. A gradient that is not finite is not applied; what was updated before it in
  /// backward stays updated.
  StepResult step(Context& ctx, std::span<const Batch> micro_batches, const UpdateOptions& update);

  /// Sum of token losses, nothing kept.
  double evaluate(Context& ctx, const Batch& batch);

  /// Parameters without a gradient on the first step although they should have one.
  std::vector<std::string> dead_parameters(const StepResult& result, std::span<const Batch> batches) const;

 private:
  DeviceBatch upload_batch(Context& ctx, const Batch& batch) const;
  void forward_backward(Context& ctx, const Batch& batch, int64_t index, float scale);
  bool has_copies() const { return options_.compute != DType::f32 && options_.fp32_master; }
  TensorView row_square(size_t row) const;
  void consume(Context& ctx, size_t row, const UpdateOptions& update);
  void update_row(Context& ctx, size_t row, const UpdateOptions& update, double gradient_scale);

  Transformer transformer_;
  EngineOptions options_;
  std::unique_ptr<const Optimizer> optimizer_;
  ParameterBuffers master_, compute_weights_, gradients_;
  OptimizerState optimizer_state_;
  WeightStore weight_store_;
  GradientStore gradient_store_;
  DeviceBatch batch_;
  TensorView token_loss_;   // [micro_batches, T] f32
  TensorView row_squares_;  // [rows] f64
};

/// Tokens per loss chunk: a multiple of 64 that keeps the logits of a chunk within 32 MiB, at least 64, or all `tokens`
/// where those are fewer.
int64_t default_loss_chunk(const ModelConfig& config, DType compute, int64_t tokens);

/// Bytes that live as long as the run: weights, gradients and the optimizer's state.
size_t state_bytes(const ModelConfig& config, const EngineOptions& options);

}  // namespace yoke
