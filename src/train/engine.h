// The device side of training: everything that lives in the arena, and one optimizer step. The same code runs on the
// dry device, which is how a run's memory is known before it starts.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/batch.h"
#include "model/transformer.h"
#include "train/parameter_state.h"
#include "train/pipeline_step.h"

namespace yoke {

struct EngineOptions {
  DType compute = DType::f32;   ///< f32, bf16 or f16
  int64_t micro_batch = 1;      ///< sequences per forward pass at most
  int64_t sequence_length = 1;  ///< tokens per sequence
  int64_t micro_batches = 1;    ///< per optimizer step and rank at most
  int64_t loss_chunk = 0;       ///< tokens whose logits exist at a time; 0: chosen by size
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = -1;  ///< -1: all
  OptimizerOptions optimizer;
  bool fp32_master = true;  ///< false, with bf16 only: bf16 weights are all there is, updates are rounded at random
  DType gradients = DType::f32;    ///< bf16, with bf16 only: those of norms and biases stay f32
  bool evaluates = true;           ///< validation is part of the plan
  bool consume_gradients = false;  ///< one micro-batch a step, not f16: see Engine::step
  MeshSizes mesh;
  int zero = 1;  ///< stage: 1 shards what the optimizer keeps, 2 gradients, 3 weights
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int virtual_stages = 1;  ///< of a pipeline rank; above 1 for PipelineSchedule::interleaved alone

  PipelineShape pipeline() const { return {mesh.pipeline, virtual_stages, static_cast<int>(micro_batches)}; }

  /// Of a micro-batch, on each of the ranks that share its sequences.
  int64_t tokens() const { return micro_batch * sequence_length / mesh.context; }
  /// Blocks compute with rounded copies of the master weights.
  bool has_copies() const { return compute != DType::f32 && fp32_master; }
};

/// The same on all ranks, but for row_norms.
struct StepResult {
  double loss_sum = 0;  ///< over supervised tokens of all ranks
  int64_t supervised = 0;
  double gradient_norm = 0;            ///< before clipping, unscaled
  bool finite = true;                  ///< false: the update was skipped (of consumed gradients: where not finite)
  int64_t first_bad_micro_batch = -1;  ///< the first whose loss is not finite
  std::vector<double> row_norms;       ///< of each of this rank's parameter rows: norm of the whole tensor's gradient
  double loss() const { return loss_sum / static_cast<double>(supervised); }
};

class Engine {
 public:
  /// Takes all its memory from ctx.arena, which has to outlive it, as has `parallel`, whose mesh is that of the
  /// options. What follows is called on all ranks of the mesh, with the same arguments but for batches.
  Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options, const Parallel& parallel);
  /// A rank alone.
  Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options);

  const Transformer& transformer() const { return transformer_; }
  const EngineOptions& options() const { return options_; }
  /// Random weights by the config's initializer_range.
  void initialise(Context& ctx, uint64_t seed);
  /// To be called after master() was written from outside: rounds the compute copies, if there are any.
  void refresh_weights(Context& ctx);

  const Parallel& parallel() const { return parallel_; }
  const ParameterState& parameters() const { return state_; }
  /// The weights that training changes, f32, or bf16 without fp32_master: what this rank has of each row of
  /// transformer().parameters(), see ParameterState.
  const ParameterBuffers& master() const { return state_.master(); }
  const OptimizerState& optimizer_state() const { return state_.optimizer(); }
  /// Of the last step; not for consumed gradients.
  const ParameterBuffers& gradients() const {
    YOKE_ASSERT(!options_.consume_gradients);
    return state_.gradients();
  }
  WeightStore& weights() const { return state_.weights(); }
  /// As before the first update.
  void clear_optimizer(Context& ctx) { optimizer_state().clear(ctx); }

  /// Forward and backward of all micro-batches and the update. Loss and gradient are those of one big batch: the sum of
  /// token losses over the supervised tokens of all micro-batches of all ranks. `micro_batches`: those of this rank's
  /// place on the data axis, as many on every rank. A non-finite loss or gradient skips the update.
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
  PipelineMembers pipeline_members() const;
  void forward_backward_all(Context& ctx, std::span<const Batch> micro_batches, float scale);
  void forward_backward(Context& ctx, const Batch& batch, int64_t index, float scale);
  Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options, std::unique_ptr<const Parallel> own,
         const Parallel* parallel);
  /// Adds the gradients that first and last stage have of a tied embedding.
  void sum_tied_gradients(Context& ctx);
  /// Adds the gradients that each tensor-parallel rank has of its own tokens or heads alone.
  void sum_partial_gradients(Context& ctx);
  /// Squares of each row's whole gradient, wherever its elements are, read by the host.
  std::vector<double> gradient_squares(Context& ctx);
  void sum_losses(Context& ctx, std::span<const Batch> micro_batches, double square_sum, StepResult* result);
  double sum_over_context(Context& ctx, double mine);
  TensorView row_square(size_t row) const;
  void consume(Context& ctx, size_t row, const UpdateOptions& update);
  void update_row(Context& ctx, size_t row, const UpdateOptions& update, double gradient_scale);

  std::unique_ptr<const Parallel> own_parallel_;
  const Parallel& parallel_;
  Transformer transformer_;
  EngineOptions options_;
  std::unique_ptr<const Optimizer> optimizer_;
  ParameterState state_;
  DeviceBatch batch_;
  std::optional<PipelineLists> pipeline_;  // absent: one stage
  TensorView token_loss_;                  // [micro_batches, T] f32
  TensorView row_squares_;                 // [rows] f64
};

/// Tokens per loss chunk: a multiple of 64 that keeps the logits of a chunk within 32 MiB, at least 64, or all `tokens`
/// where those are fewer.
int64_t default_loss_chunk(const ModelConfig& config, DType compute, int64_t tokens);

/// Bytes of a rank of the mesh that live as long as the run: weights, gradients and the optimizer's state.
size_t state_bytes(const ModelConfig& config, const EngineOptions& options, int rank = 0);

}  // namespace yoke
