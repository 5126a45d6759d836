// The whole model: embedding, blocks, final norm, and a head whose logits exist only chunk by chunk inside the loss.
#pragma once

#include <span>
#include <vector>

#include "model/activations.h"
#include "model/block.h"
#include "model/config.h"
#include "model/parameters.h"
#include "model/store.h"

namespace yoke {

/// A micro-batch on the device. T = rows * length.
struct DeviceBatch {
  int64_t rows = 0;
  int64_t length = 0;
  TensorView tokens;     ///< [T] i32
  TensorView targets;    ///< [T] i32, negative: no loss
  TensorView positions;  ///< [T] i32
  TensorView key_begin;  ///< [T] i32

  DeviceBatch() = default;
  DeviceBatch(Arena& arena, int64_t rows, int64_t length);
  /// Fills the front of this memory with a batch of at most its size and returns the view of it.
  DeviceBatch upload(Context& ctx, int64_t rows, int64_t length, std::span<const int32_t> tokens,
                     std::span<const int32_t> targets, std::span<const int32_t> positions,
                     std::span<const int32_t> key_begin) const;
  int64_t size() const { return rows * length; }
};

/// What a micro-batch keeps between forward and backward.
struct MicroBatchMemory {
  bool transient = false;  ///< nothing is kept: all blocks share one set
  std::vector<BlockActivations> blocks;
  TensorView final_input;  ///< [T, h] residual stream after the last block
  TensorView final_rstd;   ///< [T] f32
  TensorView final_norm;   ///< [T, h]
};

/// How the loss walks the tokens, and what it multiplies the gradient with.
struct LossOptions {
  int64_t chunk = 0;  ///< tokens whose logits exist at a time
  float scale = 1;    ///< 1 / supervised tokens of the global batch, times the loss scale
};

class Transformer {
 public:
  /// Checks the config. `compute`: f32, bf16 or f16. `recompute` applies to the first `recompute_layers` blocks, the
  /// others keep everything (-1: all blocks).
  Transformer(const ModelConfig& config, DType compute, Recompute recompute = Recompute::none,
              int64_t recompute_layers = -1);
  Transformer(const Transformer&) = delete;  // blocks refer to the config
  Transformer& operator=(const Transformer&) = delete;

  const ModelConfig& config() const { return config_; }
  const ParameterTable& parameters() const { return parameters_; }
  const ActivationTable& activations(int64_t layer) const;
  DType compute() const { return compute_; }

  /// Uploads the rotary table for this many positions; kept in the arena. Needed before any forward.
  void prepare_positions(Context& ctx, int64_t positions);

  /// Memory for a training micro-batch, or, with `transient`, for a forward pass that nothing follows: all blocks then
  /// share one set.
  MicroBatchMemory allocate(Arena& arena, int64_t tokens, bool transient) const;

  /// Fills memory up to final_norm.
  void forward(Context& ctx, const DeviceBatch& batch, const WeightStore& weights, MicroBatchMemory& memory) const;
  /// Token losses [T] f32. With `gradients`, head gradients go there and that of final_norm into `gradient` [T, h],
  /// which may be final_norm itself.
  void loss(Context& ctx, const DeviceBatch& batch, const WeightStore& weights, const MicroBatchMemory& memory,
            const LossOptions& options, const TensorView& token_loss, GradientStore* gradients,
            const TensorView& gradient) const;
  /// From the gradient of final_norm, which is overwritten, to all parameters.
  void backward(Context& ctx, const DeviceBatch& batch, const WeightStore& weights, GradientStore& gradients,
                MicroBatchMemory& memory, const TensorView& gradient) const;

  /// Logits [1, V] of the last of `tokens` [n] i32, which stand at positions cache.filled, ...; appends to the cache.
  void decode(Context& ctx, const TensorView& tokens, const TensorView& positions, const TensorView& key_begin,
              const WeightStore& weights, KeyValueCache& cache, const TensorView& logits) const;

 private:
  BlockInputs inputs(const DeviceBatch& batch) const;
  void run_blocks(Context& ctx, const BlockInputs& in, const TensorView& tokens, const WeightStore& weights,
                  MicroBatchMemory& memory) const;

  ModelConfig config_;
  ParameterTable parameters_;
  DType compute_;
  ActivationTable kept_, recomputed_;
  int64_t recompute_layers_;
  std::vector<Block> blocks_;
  TensorView rope_;
};

/// Forward pass whose activations nothing keeps; the sum of token losses, on the host.
double sum_of_losses(Context& ctx, const Transformer& transformer, const WeightStore& weights, const DeviceBatch& batch,
                     int64_t loss_chunk);

/// Writes initial values: matrices normal with the config's initializer_range, norms 1, biases 0. A value depends on
/// (seed, parameter, index) alone.
void initialise_parameters(Context& ctx, const ModelConfig& config, const ParameterTable& table,
                           const ParameterBuffers& values, uint64_t seed);

}  // namespace yoke
