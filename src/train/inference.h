// A model for generating and evaluating: weights only, no gradients, no optimizer.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/hf_config.h"
#include "data/batch.h"
#include "data/tokenizer/tokenizer.h"
#include "model/transformer.h"
#include "train/recipe.h"

namespace yoke {

/// What a model that is only run takes.
struct InferenceOptions {
  std::filesystem::path model;  ///< Hugging Face folder
  std::optional<std::string> tokenizer;
  std::optional<int> threads;
  std::optional<Precision> precision;
};

/// A loaded model. Either prepare call takes all memory, once, and loads the weights.
class InferenceModel {
 public:
  explicit InferenceModel(const InferenceOptions& options);

  const ModelConfig& config() const { return config_.model; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  int threads() const { return device_.threads(); }

  /// For batches of at most rows x length. UserError when it is longer than the model or does not fit the memory.
  void prepare_evaluation(int64_t rows, int64_t length);
  /// For one sequence of at most `length` tokens.
  void prepare_generation(int64_t length);

  /// Sum of token losses over the supervised tokens of a batch.
  double evaluate(const Batch& batch);
  /// Appends tokens to the sequence; logits [vocabulary] of what follows the last one.
  std::vector<float> append(std::span<const int32_t> tokens);

 private:
  static constexpr int64_t kPiece = 256;  ///< tokens of a prompt that go through the model at a time

  /// `lay_out(ctx)` allocates, `rehearse(ctx)` runs the largest pass; both first on the dry device.
  template <class LayOut, class Rehearse>
  void prepare(const LayOut& lay_out, const Rehearse& rehearse);
  void lay_out_model(Context& ctx, int64_t positions);
  void check_length(int64_t length) const;
  double evaluate(Context& ctx, const Batch& batch);
  void append_piece(Context& ctx, std::span<const int32_t> tokens);

  HfConfig config_;
  std::filesystem::path folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Device device_;
  Transformer transformer_;
  MemoryBlock block_;
  Arena arena_;
  Stream stream_;
  ParameterBuffers weights_;
  DeviceBatch batch_;
  KeyValueCache cache_;
  int64_t capacity_ = 0;  ///< tokens of the sequence
  TensorView piece_tokens_, piece_positions_, piece_key_begin_, logits_, logits_f32_;
};

}  // namespace yoke
