// The whole model: embedding, blocks, final norm, and a head whose logits exist only chunk by chunk inside the loss.
#pragma once

#include <span>
#include <vector>

#include "model/activations.h"
#include "model/block.h"
#include "model/config.h"
#include "model/parameters.h"
#include "model/store.h"
#include "model/units.h"

namespace yoke {

/// A micro-batch on the device. T = rows * length. Where ranks share sequences, rows are this rank's chunks of them
/// (model/ring_attention.h).
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

/// What a micro-batch keeps between forward and backward of a piece of the model.
struct MicroBatchMemory {
  size_t piece = 0;        ///< of ModelPart::pieces
  bool transient = false;  ///< nothing is kept: all blocks share one set
  std::vector<BlockActivations> blocks;
  // Where the piece ends the model.
  TensorView final_input;  ///< [S, h] residual stream after the last block
  TensorView final_rstd;   ///< [S] f32
  TensorView final_norm;   ///< [S, h]
};

/// How a piece of the model is connected with the pieces before and behind it.
struct PieceLinks {
  TensorView input;   ///< [S, h] what the piece before sent; absent where the piece embeds
  TensorView output;  ///< [S, h] residual stream behind the last block, for the next piece; absent where the piece ends
};

/// How the loss walks the tokens, and what it multiplies the gradient with.
struct LossOptions {
  int64_t chunk = 0;  ///< tokens whose logits exist at a time
  float scale = 1;    ///< 1 / supervised tokens of the global batch, times the loss scale
};

class Transformer {
 public:
  /// Checks the config. `compute`: f32, bf16 or f16. `recompute` applies to the first `recompute_layers` blocks, the
  /// others keep everything (-1: all blocks). `part`: what of the model is here, the ranks that have the rest of it are
  /// reached through `parallel`, which outlives this (null: none).
  Transformer(const ModelConfig& config, DType compute, Recompute recompute = Recompute::none,
              int64_t recompute_layers = -1, const ModelPart& part = {}, const Parallel* parallel = nullptr);
  Transformer(const Transformer&) = delete;  // blocks refer to the config
  Transformer& operator=(const Transformer&) = delete;

  const ModelConfig& config() const { return config_; }  ///< of the whole model
  const ParameterTable& parameters() const { return parameters_; }
  const ActivationTable& activations(int64_t layer) const;
  DType compute() const { return compute_; }

  /// Uploads the rotary table for this many positions; kept in the arena. Needed before any forward.
  void prepare_positions(Context& ctx, int64_t positions);

  const std::vector<ModelPiece>& pieces() const { return pieces_; }
  /// Memory of a piece for a training micro-batch, or, with `transient`, for a forward pass that nothing follows: all
  /// blocks then share one set.
  MicroBatchMemory allocate(Arena& arena, int64_t tokens, bool transient, size_t piece = 0) const;
  /// Rows that backward computes again, one set a layer of the piece: memory for BackwardPass::inputs, which leaves
  /// them to weight_backward().
  std::vector<BlockActivations> allocate_deferred(Arena& arena, int64_t tokens, size_t piece = 0) const;
  /// The same memory for a micro-batch of fewer tokens.
  MicroBatchMemory front(const MicroBatchMemory& memory, int64_t tokens) const;
  std::vector<BlockActivations> front(const std::vector<BlockActivations>& deferred, int64_t tokens,
                                      size_t piece = 0) const;
  /// Makes `memory` use it.
  void defer(const std::vector<BlockActivations>& deferred, MicroBatchMemory& memory) const;

  /// Fills memory up to final_norm, or links.output.
  void forward(Context& ctx, const DeviceBatch& batch, WeightStore& weights, MicroBatchMemory& memory,
               const PieceLinks& links = {}) const;
  /// Token losses [T] f32, of all tokens on every tensor-parallel rank. With `gradients`, head gradients go there and
  /// that of final_norm into `gradient` [S, h], which may be final_norm itself.
  void loss(Context& ctx, const DeviceBatch& batch, const WeightStore& weights, const MicroBatchMemory& memory,
            const LossOptions& options, const TensorView& token_loss, GradientStore* gradients,
            const TensorView& gradient) const;
  /// From the gradient [S, h] of final_norm or of links.output to all parameters of the piece, and to that of
  /// links.input, which `input_gradient` receives unless the piece embeds. BackwardPass::whole overwrites `gradient`.
  ///
  /// BackwardPass::inputs leaves most weights' gradients to weight_backward(), until which `gradient`, `memory` and
  /// what defer() gave it have to stay.
  void backward(Context& ctx, const DeviceBatch& batch, WeightStore& weights, GradientStore& gradients,
                MicroBatchMemory& memory, const TensorView& gradient, const TensorView& input_gradient = {},
                BackwardPass pass = BackwardPass::whole) const;
  /// `gradient`: as backward() got it.
  void weight_backward(Context& ctx, const DeviceBatch& batch, GradientStore& gradients, const MicroBatchMemory& memory,
                       const TensorView& gradient) const;

  /// Logits [1, V] of the last of `tokens` [n] i32, which stand at positions cache.filled, ...; appends to the cache.
  void decode(Context& ctx, const TensorView& tokens, const TensorView& positions, const TensorView& key_begin,
              WeightStore& weights, KeyValueCache& cache, const TensorView& logits) const;

 private:
  BlockInputs inputs(const DeviceBatch& batch) const;
  int64_t first_id() const { return shard_.rank * local_.vocabulary; }  // of this rank's rows of embedding and head
  /// Losses of a chunk; its logits become their gradient where `gradient`.
  void chunk_losses(Context& ctx, const TensorView& logits, const TensorView& targets, const TensorView& losses,
                    bool gradient, float scale) const;
  void run_blocks(Context& ctx, const BlockInputs& in, const TensorView& tokens, WeightStore& weights,
                  MicroBatchMemory& memory, const PieceLinks& links) const;
  void block_backward(Context& ctx, const BlockInputs& in, const WeightStore& weights, GradientStore& gradients,
                      int64_t layer, BlockActivations& a, const TensorView& gradient, const TensorView& input_gradient,
                      BackwardPass pass) const;
  const Block& block(int64_t layer) const;

  ModelConfig config_;
  TensorShard shard_;
  Communicator *tensor_, *context_;  // null: one rank
  ModelConfig local_;                // sizes of this rank
  std::vector<ModelPiece> pieces_;
  ParameterTable parameters_;
  DType compute_;
  ActivationTable kept_, recomputed_;
  int64_t recompute_layers_;
  std::vector<Block> blocks_;  ///< of all pieces, in order
  TensorView rope_;
};

/// Forward pass whose activations nothing keeps; the sum of token losses, on the host.
double sum_of_losses(Context& ctx, const Transformer& transformer, WeightStore& weights, const DeviceBatch& batch,
                     int64_t loss_chunk);

/// Writes initial values: matrices normal with the config's initializer_range, norms 1, biases 0, padding 0. A value
/// depends on (seed, parameter, index in the whole model's tensor) alone. values[i] holds elements owned(i) of a row,
/// and is absent where that is nothing.
void initialise_parameters(Context& ctx, const ModelConfig& config, const ParameterTable& table,
                           const ParameterBuffers& values, const std::function<ElementRange(size_t row)>& owned,
                           uint64_t seed);

}  // namespace yoke
