// What is kept of a parameter between steps: formats, their bytes, and gradients that are consumed in backward.
#include "train/optimizer.h"

#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/elementwise/elementwise.h"
#include "tests/train/support.h"

namespace yoke {
namespace {

using test::PlannedEngine;
using test::random_batch;

constexpr int64_t kLength = test::kBatchLength;

/// Large enough for most matrices to be quantised.
ModelConfig model_of(const char* family, bool tied = false) {
  return test::tiny_model(family, {{"hidden_size", 64}, {"intermediate_size", 96}, {"tie_word_embeddings", tied}});
}

std::string state_of(PlannedEngine& model) {
  std::string bytes = test::bytes_of(model->master()) + test::bytes_of(model->optimizer_state());
  for (size_t i = 0; i < model->master().size(); ++i) {
    const TensorView& copy = model->weights().get(i);
    bytes.append(static_cast<const char*>(copy.data), copy.bytes());
  }
  return bytes;
}

/// Engines that differ in what they keep of a parameter.
std::vector<EngineOptions> optimizer_settings() {
  std::vector<EngineOptions> all;
  for (const MomentsFormat moments : {MomentsFormat::fp32, MomentsFormat::bf16, MomentsFormat::int8}) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      all.push_back({.compute = compute, .micro_batches = 2, .optimizer = {.moments = moments}});
      all.push_back({.compute = compute, .optimizer = {.moments = moments}, .consume_gradients = true});
    }
    for (const bool consume : {false, true}) {
      all.push_back({.compute = DType::bf16,
                     .micro_batches = consume ? 1 : 2,
                     .optimizer = {.moments = moments},
                     .fp32_master = false,
                     .gradients = DType::bf16,
                     .consume_gradients = consume});
    }
  }
  all.push_back({.compute = DType::bf16, .micro_batches = 2, .gradients = DType::bf16});
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::adafactor, OptimizerKind::sgd}) {
    const MomentsFormat moments = kind == OptimizerKind::adafactor ? MomentsFormat::fp32 : MomentsFormat::int8;
    const OptimizerOptions optimizer{.kind = kind, .moments = moments};
    all.push_back({.compute = DType::f32, .micro_batches = 2, .optimizer = optimizer});
    all.push_back({.compute = DType::f16, .micro_batches = 2, .optimizer = {.kind = kind, .momentum = 0}});
    all.push_back({.compute = DType::bf16,
                   .optimizer = optimizer,
                   .fp32_master = false,
                   .gradients = DType::bf16,
                   .consume_gradients = true});
  }
  return all;
}

// The plan to the byte, whatever is kept.
TEST(Optimizer, ThePlanHoldsWhateverTheOptimizerKeeps) {
  for (const EngineOptions& formats : optimizer_settings()) {
    for (const char* family : {"Qwen2", "Qwen3"}) {
      EngineOptions options = formats;
      options.micro_batch = 2;
      options.sequence_length = 19;
      const ModelConfig config =
          test::tiny_model(family, {{"hidden_size", 64}, {"tie_word_embeddings", family[4] == '3'}});
      PlannedEngine model(config, options);
      const std::vector<Batch> batches(static_cast<size_t>(options.micro_batches), random_batch(2, 5, 1, 19));
      EXPECT_TRUE(model.step(batches, {.learning_rate = 1e-3, .step = 1}).finite);
      EXPECT_EQ(model.arena.peak(), model.plan.peak_bytes);
    }
  }
}

/// Bytes by the rules of docs/recipe.md, tensor by tensor, each rounded up to what the arena rounds to.
size_t bytes_by_hand(const ModelConfig& config, const EngineOptions& options) {
  const auto rounded = [](int64_t bytes) { return static_cast<size_t>((bytes + 63) / 64 * 64); };
  const ParameterTable table(config);
  size_t sum = 0;
  for (const ParameterRow& row : table.rows()) {
    const int64_t n = row.shape.elements();
    const bool matrix = row.shape.rank() == 2;
    sum += options.compute == DType::f32 ? rounded(4 * n) : rounded(2 * n) + (options.fp32_master ? rounded(4 * n) : 0);
    sum += rounded((matrix && options.gradients == DType::bf16 ? 2 : 4) * n);
    for (int moment = 0; moment < 2; ++moment) {
      if (options.optimizer.moments == MomentsFormat::int8 && matrix && n >= 4096) {
        sum += rounded(n) + rounded((n + 255) / 256 * 4);
      } else {
        sum += rounded((options.optimizer.moments == MomentsFormat::bf16 ? 2 : 4) * n);
      }
    }
  }
  return sum;
}

TEST(Optimizer, StateTakesTheBytesOfItsFormats) {
  struct Case {
    EngineOptions options;
    double bytes_a_parameter;
  };
  const Case cases[] = {
      {{.compute = DType::f32}, 16},
      {{.compute = DType::bf16}, 18},
      {{.compute = DType::bf16, .gradients = DType::bf16}, 16},
      {{.compute = DType::bf16, .optimizer = {.moments = MomentsFormat::int8}, .gradients = DType::bf16}, 10},
      {{.compute = DType::bf16,
        .optimizer = {.moments = MomentsFormat::bf16},
        .fp32_master = false,
        .gradients = DType::bf16},
       8},
      {{.compute = DType::bf16, .optimizer = {.moments = MomentsFormat::bf16}}, 14},
      {{.compute = DType::f32, .optimizer = {.moments = MomentsFormat::int8}}, 10}};
  ModelConfig large = test::tiny_model("Llama", {{"vocab_size", 32000},
                                                 {"hidden_size", 768},
                                                 {"intermediate_size", 2048},
                                                 {"num_hidden_layers", 12},
                                                 {"num_attention_heads", 12},
                                                 {"num_key_value_heads", 12},
                                                 {"head_dim", 64}});
  for (const auto& [options, bytes] : cases) {
    for (const char* family : {"Qwen2", "Qwen3"}) {
      EXPECT_EQ(state_bytes(model_of(family), options), bytes_by_hand(model_of(family), options));
    }
    EXPECT_EQ(state_bytes(large, options), bytes_by_hand(large, options));
    // Scales and the vectors that stay fp32 are what the closed forms leave out.
    const double scales = options.optimizer.moments == MomentsFormat::int8 ? 2 * 4.0 / 256 : 0;
    const double got = static_cast<double>(state_bytes(large, options)) / static_cast<double>(large.parameters());
    EXPECT_NEAR(got, bytes + scales, 1e-3 * bytes);
  }
}

// bf16 weights alone: each update of 1e-4 is below half a unit of 1 (2^-9), and the mean moves all the same.
TEST(Optimizer, SmallUpdatesMoveBf16WeightsOnAverage) {
  constexpr int64_t kCount = 1 << 14, kSteps = 200;
  constexpr double kRate = 1e-4;
  const Device device = Device::cpu(2);
  const MemoryBlock block(size_t{1} << 20);
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  const auto fresh = [&](DType type, float value) {
    const TensorView view = arena.allocate("x", type, {kCount});
    fill(ctx, {.y = view, .value = value});
    return view;
  };
  AdamW args{.weights = {fresh(DType::bf16, 1), {}},
             .gradient = fresh(DType::f32, 0.37f),
             .m = {fresh(DType::f32, 0), {}},
             .v = {fresh(DType::f32, 0), {}},
             .learning_rate = kRate};
  for (int64_t step = 1; step <= kSteps; ++step) {
    args.step = step;
    args.random = {1, static_cast<uint64_t>(step) << 24};
    adamw(ctx, args);  // a constant gradient: each update is the learning rate
  }
  double mean = 0;
  for (int64_t i = 0; i < kCount; ++i) mean += to_float(args.weights.master.as<bf16>()[i]);
  mean /= kCount;
  // A step moves an element by one unit below 1, 2^-8, with the probability kRate 2^8.
  const double unit = 0x1p-8, p = kRate / unit;
  const double deviation = unit * std::sqrt(kSteps * p * (1 - p) / kCount);
  EXPECT_NEAR(mean, 1 - kSteps * kRate, 5 * deviation);
  EXPECT_LT(5 * deviation, 0.05 * kSteps * kRate);
}

TEST(Optimizer, ConsumedGradientsGiveTheSameBits) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const char* family : {"Llama", "Mistral", "Qwen2", "Qwen3"}) {
      for (const bool tied : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(compute), family, tied));
        EngineOptions options{.compute = compute, .micro_batch = 2, .sequence_length = kLength, .loss_chunk = 24};
        PlannedEngine plain(model_of(family, tied), options);
        options.consume_gradients = true;
        PlannedEngine consumed(model_of(family, tied), options);
        for (int64_t step = 1; step <= 3; ++step) {
          const UpdateOptions update{.learning_rate = 1e-2, .weight_decay = 0.1, .step = step};
          const Batch batch = random_batch(2, 40, static_cast<uint64_t>(step));
          const StepResult want = plain.step({batch}, update), got = consumed.step({batch}, update);
          EXPECT_EQ(got.loss_sum, want.loss_sum);
          EXPECT_EQ(got.row_norms, want.row_norms);
          EXPECT_EQ(got.gradient_norm, want.gradient_norm);
        }
        EXPECT_EQ(state_of(consumed), state_of(plain));
        EXPECT_LT(consumed.plan.peak_bytes, plain.plan.peak_bytes);
      }
    }
  }
}

// After one AdamW step m is (1 - beta1) times the clipped gradient.
TEST(Optimizer, ConsumedGradientsAreClippedToTheirShare) {
  EngineOptions options{.micro_batch = 2, .sequence_length = kLength};
  const ModelConfig config = model_of("Qwen3", true);
  const Batch batch = random_batch(2, 40, 5);
  PlannedEngine plain(config, options);
  const StepResult result = plain.step({batch});
  options.consume_gradients = true;
  PlannedEngine model(config, options);
  const double clip_norm = 0.5 * result.gradient_norm;
  EXPECT_EQ(model.step({batch}, {.clip_norm = clip_norm}).gradient_norm, result.gradient_norm);
  double clipped_square = 0;
  int64_t clipped_rows = 0;
  const auto parameters = static_cast<double>(config.parameters());
  for (size_t row = 0; row < plain->gradients().size(); ++row) {
    const TensorView& gradient = plain->gradients()[row];
    const double norm = result.row_norms[row];
    const double most = clip_norm * std::sqrt(static_cast<double>(gradient.elements()) / parameters);
    const double factor = std::min(1.0, most / norm);
    clipped_rows += factor < 1;
    clipped_square += factor * norm * factor * norm;
    for (int64_t i = 0; i < gradient.elements(); ++i) {
      const double want = 0.1 * factor * static_cast<double>(gradient.as<float>()[i]);
      ASSERT_NEAR(model->optimizer_state().of(row)[0].as<float>()[i], want, 1e-5 * std::abs(want) + 1e-12) << row;
    }
  }
  EXPECT_LE(std::sqrt(clipped_square), clip_norm);
  EXPECT_GT(clipped_rows, 0);
}

// A scale at which some gradients overflow and others don't.
TEST(Optimizer, OnlyFiniteGradientsAreConsumed) {
  EngineOptions options{.micro_batch = 2, .sequence_length = kLength};
  const ModelConfig config = model_of("Llama");
  const Batch batch = random_batch(2, 40, 5);
  PlannedEngine plain(config, options);
  options.consume_gradients = true;
  bool mixed = false;
  for (double scale = 1e34; scale < 1e41 && !mixed; scale *= 4) {
    const std::vector<double> norms = plain.step({batch}, {.loss_scale = scale}).row_norms;
    const auto bad = std::count_if(norms.begin(), norms.end(), [](double norm) { return !std::isfinite(norm); });
    if (bad == 0 || bad == static_cast<std::ptrdiff_t>(norms.size())) continue;
    mixed = true;
    PlannedEngine model(config, options);
    std::vector<std::string> before;
    const auto row_bytes = [&](size_t row) {
      std::string bytes(model->master()[row].as<char>(), model->master()[row].bytes());
      for (const TensorView& t : model->optimizer_state().of(row)) bytes.append(t.as<char>(), t.bytes());
      return bytes;
    };
    for (size_t row = 0; row < norms.size(); ++row) before.push_back(row_bytes(row));
    const StepResult result = model.step({batch}, {.learning_rate = 1e-2, .loss_scale = scale});
    EXPECT_FALSE(result.finite);
    for (size_t row = 0; row < norms.size(); ++row) {
      EXPECT_EQ(row_bytes(row) != before[row], std::isfinite(norms[row])) << row;
    }
  }
  EXPECT_TRUE(mixed) << "no scale tells them apart";
}

// Sums over micro-batches in bf16 stay near those in fp32: rounding errors of 2^-9 relative to the running sum, one for
// each loss chunk and micro-batch.
TEST(Optimizer, GradientsAccumulateInBf16) {
  const Batch a = random_batch(2, 40, 1), b = random_batch(2, 23, 2);
  for (const char* family : {"Qwen2", "Qwen3"}) {
    EngineOptions options{
        .compute = DType::bf16, .micro_batch = 2, .sequence_length = kLength, .micro_batches = 2, .loss_chunk = 32};
    PlannedEngine wide(model_of(family, true), options);
    options.gradients = DType::bf16;
    PlannedEngine narrow(model_of(family, true), options);
    wide.step({a, b});
    narrow.step({a, b});
    for (size_t row = 0; row < wide->gradients().size(); ++row) {
      const TensorView &got = narrow->gradients()[row], &want = wide->gradients()[row];
      ASSERT_EQ(got.dtype, want.shape.rank() == 2 ? DType::bf16 : DType::f32);
      double difference = 0, square = 0;
      for (int64_t i = 0; i < want.elements(); ++i) {
        const double w = want.as<float>()[i];
        const double g = got.dtype == DType::bf16 ? to_float(got.as<bf16>()[i]) : got.as<float>()[i];
        difference += (g - w) * (g - w);
        square += w * w;
      }
      EXPECT_EQ(difference > 0, got.dtype == DType::bf16) << row;
      EXPECT_LE(std::sqrt(difference / square), 6 * 0x1p-9) << row;
    }
  }
}

}  // namespace
}  // namespace yoke
