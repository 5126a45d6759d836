// Pieces of a model, one after the other, and backward in two passes: the same bits as the whole at once.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "base/random.h"
#include "device/transfer.h"
#include "model/transformer.h"
#include "ops/elementwise/elementwise.h"

namespace yoke {
namespace {

constexpr int64_t kRows = 2, kLength = 24, kTokens = kRows * kLength, kMicroBatches = 3;

/// `family`: 0 plain, 1 biases and a sliding window, 2 QK-norm.
ModelConfig tiny(int family, bool tied) {
  return {.vocabulary = 61,
          .hidden = 32,
          .layers = 5,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .mlp = 40,
          .max_positions = 64,
          .tied_embeddings = tied,
          .qkv_bias = family == 1,
          .qk_norm = family == 2,
          .sliding_window = family == 1 ? 7 : 0,
          .initializer_range = 0.1};
}

/// Gradients and losses of some micro-batches.
struct Outcome {
  std::map<std::string, std::string> gradients;  ///< bytes by row
  std::string losses;
};

struct Case {
  ModelConfig config;
  DType compute = DType::f32;
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = -1;
};

std::string bytes_of(const TensorView& t) { return {static_cast<const char*>(t.data), t.bytes()}; }

/// One piece of the model with weights and gradients of its own.
class Piece {
 public:
  Piece(Context& ctx, const Case& c, const ModelPart& part)
      : transformer_(c.config, c.compute, c.recompute, c.recompute_layers, part),
        weights_(ctx.arena, "weight", transformer_.parameters(), c.compute, MemoryKind::weights),
        gradients_(ctx.arena, "gradient", transformer_.parameters(), DType::f32, MemoryKind::gradients) {
    transformer_.prepare_positions(ctx, kLength);
    initialise_parameters(
        ctx, c.config, transformer_.parameters(), weights_,
        [&](size_t row) {
          return ElementRange{0, weights_[row].elements()};
        },
        3);
    for (int64_t m = 0; m < kMicroBatches; ++m) memory_.push_back(transformer_.allocate(ctx.arena, kTokens, false));
    store_.begin_step(ctx, kMicroBatches);
  }

  void forward(Context& ctx, const DeviceBatch& batch, size_t m, const PieceLinks& links) {
    transformer_.forward(ctx, batch, weight_store_, memory_[m], links);
  }
  /// The loss of a piece that ends.
  TensorView loss(Context& ctx, const DeviceBatch& batch, size_t m, const TensorView& losses) {
    transformer_.loss(ctx, batch, weight_store_, memory_[m], {.chunk = 20, .scale = 0.125f}, losses, &store_,
                      memory_[m].final_norm);
    return memory_[m].final_norm;
  }
  void backward(Context& ctx, const DeviceBatch& batch, size_t m, const TensorView& gradient,
                const TensorView& input_gradient, BackwardPass pass) {
    if (pass == BackwardPass::inputs)
      transformer_.defer(transformer_.allocate_deferred(ctx.arena, kTokens), memory_[m]);
    transformer_.backward(ctx, batch, weight_store_, store_, memory_[m], gradient, input_gradient, pass);
  }
  void weight_backward(Context& ctx, const DeviceBatch& batch, size_t m, const TensorView& gradient) {
    transformer_.weight_backward(ctx, batch, store_, memory_[m], gradient);
  }
  void collect(Outcome& outcome) const {
    const ParameterTable& table = transformer_.parameters();
    for (size_t i = 0; i < table.size(); ++i) {
      outcome.gradients[table[i].name + (table[i].copy ? " copy" : "")] = bytes_of(gradients_[i]);
    }
  }

 private:
  Transformer transformer_;
  ParameterBuffers weights_, gradients_;
  WeightStore weight_store_{weights_};
  GradientStore store_{gradients_};
  std::vector<MicroBatchMemory> memory_;
};

DeviceBatch random_batch(Context& ctx, uint64_t seed) {
  const DeviceBatch batch(ctx.arena, kRows, kLength);
  const RandomStream random{seed, 0};
  std::vector<int32_t> tokens, targets, positions, key_begin;
  for (uint64_t i = 0; i < kTokens; ++i) {
    const auto at = static_cast<int32_t>(i) % static_cast<int32_t>(kLength), document = at < 10 ? 0 : 10;
    tokens.push_back(static_cast<int32_t>(random.word(i) % 61));
    targets.push_back(random.word(1000 + i) % 4 == 0 ? -1 : static_cast<int32_t>(random.word(2000 + i) % 61));
    positions.push_back(at - document);
    key_begin.push_back(document);
  }
  return batch.upload(ctx, kRows, kLength, tokens, targets, positions, key_begin);
}

/// `layers` of each piece. With BackwardPass::inputs the weights' gradients come after everything else.
Outcome run(const Case& c, const std::vector<int64_t>& layers, BackwardPass pass) {
  const Device device = Device::cpu(1);
  MemoryBlock block(size_t{64} << 20);
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  std::vector<std::unique_ptr<Piece>> pieces;
  for (size_t p = 0, first = 0; p < layers.size(); first += static_cast<size_t>(layers[p++])) {
    const ModelPiece piece{static_cast<int64_t>(first), layers[p], p == 0, p + 1 == layers.size()};
    pieces.push_back(std::make_unique<Piece>(ctx, c, ModelPart{.pieces = {piece}}));
  }
  const auto activation = [&] { return arena.allocate("between", c.compute, {kTokens, c.config.hidden}); };
  const TensorView losses = arena.allocate("losses", DType::f32, {kMicroBatches, kTokens});
  std::vector<DeviceBatch> batches;
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    batches.push_back(random_batch(ctx, static_cast<uint64_t>(m)));
    TensorView between;
    for (const auto& piece : pieces) {
      const TensorView output = piece == pieces.back() ? TensorView{} : activation();
      piece->forward(ctx, batches.back(), static_cast<size_t>(m), {between, output});
      between = output;
    }
  }
  std::vector<std::function<void()>> later;
  for (size_t m = 0; m < batches.size(); ++m) {
    const TensorView own = reshape(rows(losses, static_cast<int64_t>(m), 1), {kTokens});
    TensorView gradient = pieces.back()->loss(ctx, batches[m], m, own);
    for (size_t p = pieces.size(); p-- > 0;) {
      const TensorView of_input = p == 0 ? TensorView{} : activation();
      pieces[p]->backward(ctx, batches[m], m, gradient, of_input, pass);
      if (pass == BackwardPass::inputs)
        later.emplace_back([&, p, m, gradient] { pieces[p]->weight_backward(ctx, batches[m], m, gradient); });
      gradient = of_input;
    }
  }
  for (const auto& one : later) one();
  Outcome outcome{.losses = bytes_of(losses)};
  for (const auto& piece : pieces) piece->collect(outcome);
  return outcome;
}

std::vector<Case> cases(bool tied) {
  std::vector<Case> all;
  for (int family = 0; family < 3; ++family) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      for (const Recompute recompute :
           {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::attention, Recompute::block}) {
        all.push_back({tiny(family, tied), compute, recompute});
      }
      all.push_back({tiny(family, tied), compute, Recompute::block, 3});
    }
  }
  return all;
}

void expect_same(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [row, bytes] : want.gradients) EXPECT_TRUE(got.gradients.at(row) == bytes) << row;
}

TEST(Pieces, BackwardInTwoPassesGivesTheSameBits) {
  for (const bool tied : {false, true}) {
    for (const Case& c : cases(tied)) {
      SCOPED_TRACE(fmt::format("{} {} {}", name_of(c.compute), static_cast<int>(c.recompute), c.recompute_layers));
      expect_same(run(c, {5}, BackwardPass::inputs), run(c, {5}, BackwardPass::whole));
    }
  }
}

TEST(Pieces, OfAModelGiveTheSameBitsAsAllOfIt) {
  for (const Case& c : cases(false)) {
    SCOPED_TRACE(fmt::format("{} {} {}", name_of(c.compute), static_cast<int>(c.recompute), c.recompute_layers));
    const Outcome want = run(c, {5}, BackwardPass::whole);
    expect_same(run(c, {2, 3}, BackwardPass::whole), want);
    expect_same(run(c, {1, 2, 1, 1}, BackwardPass::inputs), want);
  }
}

// Both ends have the tied matrix, each with its own share of the gradient.
TEST(Pieces, ShareATiedEmbedding) {
  const Case c{tiny(0, true)};
  const Outcome want = run(c, {5}, BackwardPass::whole);
  Outcome got = run(c, {3, 2}, BackwardPass::whole);
  std::string& first = got.gradients.at("embedding");
  const std::string& last = got.gradients.at("embedding copy");
  auto* sum = reinterpret_cast<float*>(first.data());
  const auto* whole = reinterpret_cast<const float*>(want.gradients.at("embedding").data());
  double difference = 0, square = 0;
  for (size_t i = 0; i < first.size() / sizeof(float); ++i) {
    sum[i] += reinterpret_cast<const float*>(last.data())[i];
    difference += std::pow(sum[i] - whole[i], 2);
    square += std::pow(whole[i], 2);
  }
  EXPECT_LE(std::sqrt(difference / square), 1e-6);
}

}  // namespace
}  // namespace yoke
