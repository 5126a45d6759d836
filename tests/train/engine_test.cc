// One optimizer step on a tiny model: how batches are cut, what a bad step leaves alone, and memory to the byte.
#include <cmath>
#include <limits>

#include "data/datasets.h"
#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "device/transfer.h"
#include "ops/adamw/adamw.h"
#include "ops/elementwise/elementwise.h"
#include "tests/train/support.h"
#include "train/engine_plan.h"

namespace yoke {
namespace {

using test::PlannedEngine;
using test::random_batch;

constexpr int64_t kLength = test::kBatchLength;

/// Rows [first, first + count) of a batch.
Batch rows_of(const Batch& batch, int64_t first, int64_t count) {
  Batch part{.rows = count, .length = batch.length};
  const auto cut = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
    to.assign(from.begin() + first * batch.length, from.begin() + (first + count) * batch.length);
  };
  cut(batch.tokens, part.tokens);
  cut(batch.targets, part.targets);
  cut(batch.positions, part.positions);
  cut(batch.key_begin, part.key_begin);
  for (const int32_t target : part.targets) part.supervised += target >= 0;
  return part;
}

Batch joined(const std::vector<Batch>& batches) {
  Batch all{.length = batches[0].length};
  for (const Batch& b : batches) {
    all.rows += b.rows;
    all.supervised += b.supervised;
    all.tokens.insert(all.tokens.end(), b.tokens.begin(), b.tokens.end());
    all.targets.insert(all.targets.end(), b.targets.begin(), b.targets.end());
    all.positions.insert(all.positions.end(), b.positions.begin(), b.positions.end());
    all.key_begin.insert(all.key_begin.end(), b.key_begin.begin(), b.key_begin.end());
  }
  return all;
}

std::vector<std::vector<double>> gradients_of(PlannedEngine& model) {
  std::vector<std::vector<double>> all;
  for (size_t i = 0; i < model->gradients().size(); ++i) {
    const TensorView& g = model->gradients()[i];
    all.emplace_back(g.as<float>(), g.as<float>() + g.elements());
  }
  return all;
}

void expect_close(const std::vector<std::vector<double>>& got, const std::vector<std::vector<double>>& want,
                  double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t row = 0; row < got.size(); ++row) {
    double difference = 0, square = 0;
    for (size_t i = 0; i < got[row].size(); ++i) {
      difference += (got[row][i] - want[row][i]) * (got[row][i] - want[row][i]);
      square += want[row][i] * want[row][i];
    }
    EXPECT_GT(square, 0) << "parameter " << row;
    EXPECT_LE(std::sqrt(difference / square), tolerance) << "parameter " << row;
  }
}

// A mean of means would weigh the lonely token of the first micro-batch fifty times too much.
TEST(Engine, GradientsDoNotDependOnHowABatchIsCut) {
  const Batch few = random_batch(4, 1, 1), many = random_batch(4, 99, 2), whole = joined({few, many});
  for (const char* family : {"Llama", "Mistral", "Qwen2", "Qwen3"}) {
    SCOPED_TRACE(family);
    const ModelConfig config = test::tiny_model(family);
    const auto gradients = [&](const std::vector<Batch>& batches, int64_t micro_batch) {
      PlannedEngine model(config, {.micro_batch = micro_batch,
                                   .sequence_length = kLength,
                                   .micro_batches = static_cast<int64_t>(batches.size())});
      const StepResult result = model.step(batches);
      EXPECT_TRUE(result.finite);
      return gradients_of(model);
    };
    const auto want = gradients({whole}, 8);
    expect_close(gradients({few, many}, 4), want, 1e-6);
    expect_close(gradients({many, few}, 4), want, 1e-6);
    std::vector<Batch> single;
    for (int64_t r = 0; r < 8; ++r) single.push_back(rows_of(whole, r, 1));
    expect_close(gradients(single, 1), want, 1e-6);
    expect_close(gradients({rows_of(whole, 0, 3), rows_of(whole, 3, 3), rows_of(whole, 6, 2)}, 3), want, 1e-6);

    // The closed form: (1 x gradient of the few + 99 x gradient of the many) / 100.
    auto mean = gradients({few}, 4);
    const auto of_many = gradients({many}, 4);
    for (size_t row = 0; row < mean.size(); ++row) {
      for (size_t i = 0; i < mean[row].size(); ++i) mean[row][i] = 0.01 * mean[row][i] + 0.99 * of_many[row][i];
    }
    expect_close(want, mean, 1e-6);
  }
}

// In 16 bits too: a token's activations do not depend on its neighbours, and gradients are summed in fp32.
TEST(Engine, GradientsInSixteenBitsDoNotDependOnHowABatchIsCut) {
  const Batch few = random_batch(4, 1, 1), many = random_batch(4, 99, 2);
  for (const DType compute : {DType::bf16, DType::f16}) {
    SCOPED_TRACE(name_of(compute));
    const auto gradients = [&](const std::vector<Batch>& batches, int64_t micro_batch) {
      PlannedEngine model(test::tiny_model("Qwen3"), {.compute = compute,
                                                      .micro_batch = micro_batch,
                                                      .sequence_length = kLength,
                                                      .micro_batches = static_cast<int64_t>(batches.size())});
      model.step(batches, {.loss_scale = compute == DType::f16 ? 1024.0 : 1.0});
      return gradients_of(model);
    };
    expect_close(gradients({few, many}, 4), gradients({joined({few, many})}, 8), 1e-6);
  }
}

TEST(Engine, TheLossIsThatOfOneBigBatch) {
  const Batch few = random_batch(4, 1, 1), many = random_batch(4, 99, 2);
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    PlannedEngine model(test::tiny_model("Llama"),
                        {.compute = compute, .micro_batch = 4, .sequence_length = kLength, .micro_batches = 2});
    const double sum = model->evaluate(model.ctx, few) + model->evaluate(model.ctx, many);
    const StepResult result = model.step({few, many});
    EXPECT_EQ(result.supervised, 100);
    EXPECT_NEAR(result.loss_sum, sum, 1e-6 * sum);
    EXPECT_NEAR(result.loss(), sum / 100, 1e-6 * sum);
  }
}

// Six rows, four a step: the second step holds two, and its gradient is the mean over those two.
TEST(Engine, ThePartialStepAtTheEndIsNotDiluted) {
  const test::Scratch folder;
  write_file(folder / "a.txt", test::tiny_text(6 * kLength - 1));  // the end-of-sequence token makes it six rows
  const auto tokenizer = load_tokenizer("bytes");
  const Datasets data = open_datasets(
      {.train = {(folder / "a.txt").string()}, .sequence_length = kLength, .cache = folder / "cache"}, *tokenizer);
  ASSERT_EQ(data.train->rows(), 6);
  Loader loader(*data.train, {.micro_batch = 1, .global_batch = 4, .limit = 6});
  EXPECT_EQ(loader.steps(), 2);
  const auto first = loader.next(), second = loader.next();
  ASSERT_TRUE(first && second && !loader.next());
  ASSERT_EQ(first->batches.size(), 4u);
  ASSERT_EQ(second->batches.size(), 2u);
  EXPECT_TRUE(second->partial);

  const ModelConfig config = test::tiny_model("Llama");
  PlannedEngine accumulating(config, {.micro_batch = 1, .sequence_length = kLength, .micro_batches = 4});
  accumulating.step(first->batches);  // learning rate 0: the weights stay
  const StepResult got = accumulating.step(second->batches, {.step = 2});
  PlannedEngine at_once(config, {.micro_batch = 2, .sequence_length = kLength, .micro_batches = 1});
  const StepResult want = at_once.step({joined(second->batches)});
  EXPECT_NEAR(got.loss(), want.loss(), 1e-6 * want.loss());
  EXPECT_NEAR(got.gradient_norm, want.gradient_norm, 1e-6 * want.gradient_norm);
  expect_close(gradients_of(accumulating), gradients_of(at_once), 1e-6);
}

// Updates of 1e-4 vanish in bf16 (1 - 1e-4 rounds to 1); the fp32 master moves, and the bf16 copy follows it.
TEST(Engine, SmallUpdatesMoveAWeightThatComputesInBf16) {
  const Device device = Device::cpu(1);
  const MemoryBlock block(size_t{1} << 20);
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  constexpr int64_t kCount = 37;
  constexpr double kGradient = 0.37, kRate = 1e-4, kEpsilon = 1e-8;
  const auto fresh = [&](DType type, float value) {
    const TensorView view = arena.allocate("x", type, {kCount});
    fill(ctx, {.y = view, .value = value});
    return view;
  };
  AdamW args{.weights = {fresh(DType::f32, 1), fresh(DType::bf16, 1)},
             .gradient = fresh(DType::f32, kGradient),
             .m = {fresh(DType::f32, 0), {}},
             .v = {fresh(DType::f32, 0), {}},
             .learning_rate = kRate,
             .epsilon = kEpsilon};
  double w = 1, m = 0, v = 0;
  bf16 pure = from_float<bf16>(1);
  for (int64_t step = 1; step <= 1000; ++step) {
    args.step = step;
    adamw(ctx, args);
    m = 0.9 * m + 0.1 * kGradient;
    v = 0.95 * v + 0.05 * kGradient * kGradient;
    const double t = static_cast<double>(step);
    const double update = kRate * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.95, t))) + kEpsilon);
    w -= update;
    pure = from_float<bf16>(to_float(pure) - static_cast<float>(update));
  }
  EXPECT_NEAR(w, 0.9, 1e-6);
  EXPECT_EQ(to_float(pure), 1) << "the control that shows why there is a master copy";
  for (int64_t i = 0; i < kCount; ++i) {
    const float master = args.weights.master.as<float>()[i];
    EXPECT_NEAR(master, w, 3e-5);  // a thousand roundings of half a unit in the last place, 2^-25 each
    EXPECT_EQ(to_float(args.weights.copy.as<bf16>()[i]), to_float(from_float<bf16>(master)));
  }
}

// The same through the engine: after every step the compute copy is the master, rounded.
TEST(Engine, TheComputeCopyFollowsTheMaster) {
  for (const DType compute : {DType::bf16, DType::f16}) {
    PlannedEngine model(test::tiny_model("Qwen2"), {.compute = compute, .micro_batch = 2, .sequence_length = kLength});
    const std::string before = test::bytes_of(model->master());
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(model.step({random_batch(2, 40, 3)}, {.learning_rate = 1e-3, .step = step}).finite);
    }
    EXPECT_NE(test::bytes_of(model->master()), before);
    for (size_t i = 0; i < model->master().size(); ++i) {
      const TensorView& copy = model->weights().get(i);
      for (int64_t j = 0; j < copy.elements(); ++j) {
        const float master = model->master()[i].as<float>()[j];
        if (compute == DType::bf16) {
          ASSERT_EQ(to_float(copy.as<bf16>()[j]), to_float(from_float<bf16>(master)));
        } else {
          ASSERT_EQ(to_float(copy.as<f16>()[j]), to_float(from_float<f16>(master)));
        }
      }
    }
  }
}

std::string state_bytes(PlannedEngine& model) {
  std::string bytes = test::bytes_of(model->master()) + test::bytes_of(model->optimizer_state());
  for (size_t i = 0; i < model->master().size(); ++i) {
    const TensorView& copy = model->weights().get(i);
    bytes.append(static_cast<const char*>(copy.data), copy.bytes());
  }
  return bytes;
}

TEST(Engine, ABadStepChangesNothing) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(name_of(compute));
    PlannedEngine model(test::tiny_model("Llama"),
                        {.compute = compute, .micro_batch = 2, .sequence_length = kLength, .micro_batches = 2});
    Batch clean = random_batch(2, 40, 5), dirty = random_batch(2, 40, 6);
    for (int32_t& token : clean.tokens) token = token == 11 ? 12 : token;
    dirty.tokens[3] = 11;
    const UpdateOptions update{.learning_rate = 1e-2, .weight_decay = 0.1, .clip_norm = 1};
    ASSERT_TRUE(model.step({clean, dirty}, update).finite);

    // A NaN that only the second micro-batch meets: token 11's embedding.
    float* embedding = model->master()[0].as<float>() + 11 * 32;
    const float good = *embedding;
    *embedding = kNaN;
    model->refresh_weights(model.ctx);
    const std::string before = state_bytes(model);
    const StepResult bad = model.step({clean, dirty}, update);
    EXPECT_FALSE(bad.finite);
    EXPECT_EQ(bad.first_bad_micro_batch, 1);
    EXPECT_EQ(state_bytes(model), before);

    *embedding = good;
    model->refresh_weights(model.ctx);
    const StepResult after = model.step({clean, dirty}, update);
    EXPECT_TRUE(after.finite) << "nothing of the bad step is left";
    EXPECT_EQ(after.first_bad_micro_batch, -1);
    EXPECT_NE(state_bytes(model), before);
  }
}

TEST(Engine, AnOverflowOfTheScaledGradientIsABadStepWithAGoodLoss) {
  PlannedEngine model(test::tiny_model("Llama"), {.compute = DType::f16, .micro_batch = 2, .sequence_length = kLength});
  const Batch batch = random_batch(2, 40, 5);
  const std::string before = state_bytes(model);
  const StepResult result = model.step({batch}, {.learning_rate = 1e-2, .loss_scale = 0x1p40});
  EXPECT_FALSE(result.finite);
  EXPECT_TRUE(std::isfinite(result.loss_sum));
  EXPECT_EQ(result.first_bad_micro_batch, -1);
  EXPECT_EQ(state_bytes(model), before);
  // A scale that fits gives the gradient that no scale gives.
  const StepResult scaled = model.step({batch}, {.loss_scale = 1024});
  PlannedEngine exact(test::tiny_model("Llama"), {.micro_batch = 2, .sequence_length = kLength});
  const StepResult want = exact.step({batch});
  EXPECT_TRUE(scaled.finite);
  EXPECT_NEAR(scaled.gradient_norm, want.gradient_norm, 0.01 * want.gradient_norm);
}

void set_zero(PlannedEngine& model, const std::string& name) {
  const ParameterTable& table = model->transformer().parameters();
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].name == name) std::memset(model->master()[i].data, 0, model->master()[i].bytes());
  }
  model->refresh_weights(model.ctx);
}

std::vector<std::string> dead_after_zeroing(const std::string& name, const Batch& batch, const char* family = "Llama") {
  PlannedEngine model(test::tiny_model(family), {.micro_batch = batch.rows, .sequence_length = batch.length});
  if (!name.empty()) set_zero(model, name);
  const StepResult result = model.step({batch}, {.learning_rate = 1e-2});  // zeros don't stay zeros
  EXPECT_TRUE(result.finite);
  return model->dead_parameters(result, {{batch}});
}

TEST(Engine, ParametersWithoutAGradientAreNamedUnlessTheyHaveToBeZero) {
  using Names = std::vector<std::string>;
  const Batch batch = random_batch(2, 40, 5);
  for (const char* family : {"Llama", "Mistral", "Qwen2", "Qwen3"})
    EXPECT_EQ(dead_after_zeroing("", batch, family), Names{});
  // Blocks that begin as the identity are a known way to grow a model.
  EXPECT_EQ(dead_after_zeroing("layers.0.mlp.down", batch), Names{});
  EXPECT_EQ(dead_after_zeroing("layers.1.attention.output", batch), Names{});
  // One-token documents leave nothing for queries and keys to decide.
  Batch lonely = batch;
  for (size_t i = 0; i < lonely.positions.size(); ++i) {
    lonely.positions[i] = 0;
    lonely.key_begin[i] = static_cast<int32_t>(i) % kLength;
  }
  EXPECT_EQ(dead_after_zeroing("", lonely, "Qwen3"), Names{});
  // These block what comes before or behind them.
  EXPECT_EQ(dead_after_zeroing("layers.0.attention.qkv", batch),
            (Names{"layers.0.input_norm", "layers.0.attention.output"}));
  EXPECT_EQ(dead_after_zeroing("layers.1.mlp.gate_up", batch),
            (Names{"layers.1.post_norm", "layers.1.mlp.gate_up", "layers.1.mlp.down"}));
  const Names behind = dead_after_zeroing("final_norm", batch);
  EXPECT_EQ(behind.front(), "embedding");
  EXPECT_EQ(behind.back(), "head");
  EXPECT_EQ(behind.size(), 2u + 2 * 6);
}

/// The state after some steps that use everything: accumulation, decay, clipping.
std::string state_after_steps(DType compute, int threads) {
  PlannedEngine model(test::tiny_model("Qwen3"),
                      {.compute = compute, .micro_batch = 2, .sequence_length = kLength, .micro_batches = 2}, threads);
  for (int64_t step = 1; step <= 2; ++step) {
    const auto seed = static_cast<uint64_t>(step);
    model.step({random_batch(2, 40, seed), random_batch(2, 7, seed + 100)},
               {.learning_rate = 1e-2, .weight_decay = 0.1, .clip_norm = 0.5, .step = step});
  }
  return state_bytes(model);
}

TEST(Engine, AStepRepeatsBitForBit) {
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(state_after_steps(compute, 1), state_after_steps(compute, 1)) << name_of(compute);
  }
  EXPECT_EQ(state_after_steps(DType::bf16, 2), state_after_steps(DType::bf16, 2));
}

// The arena is as large as the plan says, so going beyond it would end the process; here it is used up to the byte.
TEST(Engine, ThePlanIsWhatTheArenaGives) {
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    for (const Recompute recompute :
         {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::attention, Recompute::block}) {
      for (const auto& [micro_batch, micro_batches, chunk, layers] :
           {std::tuple{1, 1, 0, -1}, {3, 2, 5, 1}, {2, 3, 64, -1}, {4, 1, 1000, 0}}) {
        for (const char* family : {"Llama", "Qwen2", "Qwen3"}) {
          PlannedEngine model(test::tiny_model(family, {{"tie_word_embeddings", micro_batch == 2}}),
                              {.compute = compute,
                               .micro_batch = micro_batch,
                               .sequence_length = 19,
                               .micro_batches = micro_batches,
                               .loss_chunk = chunk,
                               .recompute = recompute,
                               .recompute_layers = layers});
          model.step(std::vector<Batch>(static_cast<size_t>(micro_batches), random_batch(micro_batch, 5, 1, 19)));
          model->evaluate(model.ctx, random_batch(micro_batch, 5, 2, 19));
          EXPECT_EQ(model.arena.peak(), model.plan.peak_bytes);
          size_t alive = 0;
          for (const Arena::Allocation& a : model.plan.alive_at_peak) alive += a.bytes;
          EXPECT_EQ(alive, model.plan.peak_bytes);
        }
      }
    }
  }
}

// Two micro-batches are run whatever their number; more of them add work, and memory only for their token losses.
TEST(Engine, APlanOfManyMicroBatchesIsTheSumOfTheirWork) {
  const ModelConfig config = test::tiny_model("Llama");
  EngineOptions options{.micro_batch = 2, .sequence_length = kLength};
  std::vector<EnginePlan> plans;
  for (const int64_t count : {1, 2, 3, 7}) {
    options.micro_batches = count;
    plans.push_back(plan_engine(Device::cpu(1), config, options, {1e12, 1e11}));
  }
  const double flops = plans[1].step_flops - plans[0].step_flops;
  const double seconds = plans[1].step_seconds - plans[0].step_seconds;
  EXPECT_GT(flops, 0);
  EXPECT_GT(seconds, 0);
  EXPECT_DOUBLE_EQ(plans[3].step_flops, plans[0].step_flops + 6 * flops);
  EXPECT_NEAR(plans[3].step_seconds, plans[0].step_seconds + 6 * seconds, 1e-9 * plans[3].step_seconds);
  EXPECT_EQ(plans[3].peak_bytes, plans[1].peak_bytes + 5 * 2 * kLength * sizeof(float));

  options.micro_batches = int64_t{1} << 30;  // would take years
  EXPECT_GT(plan_engine(Device::cpu(1), config, options).step_flops, 1e9 * flops);
}

// The real engine's step, watched, is the plan's timeline.
TEST(Engine, TheTimelineIsWhatAStepAllocates) {
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    for (const Recompute recompute : {Recompute::none, Recompute::mlp, Recompute::block}) {
      PlannedEngine model(
          test::tiny_model("Qwen3"),
          {.compute = compute, .micro_batch = 2, .sequence_length = 19, .micro_batches = 2, .recompute = recompute});
      const std::vector<MemoryEvent>& planned = model.plan.timeline.events;
      size_t next = 0, used = model.arena.used(), highest = used;
      for (const Arena::Allocation& a : model.arena.alive()) {
        EXPECT_NE(a.kind, MemoryKind::workspace) << a.name << " lives as long as the run";
      }
      EXPECT_EQ(std::accumulate(model.plan.timeline.before.begin(), model.plan.timeline.before.end(), size_t{0}), used);
      model.arena.observe([&](const Arena::Allocation& a, bool allocated) {
        ASSERT_LT(next, planned.size());
        EXPECT_EQ(planned[next].bytes, allocated ? static_cast<int64_t>(a.bytes) : -static_cast<int64_t>(a.bytes));
        EXPECT_EQ(planned[next].kind, a.kind);
        EXPECT_STREQ(planned[next].moment.part, model.arena.moment().part);
        EXPECT_EQ(planned[next].moment.layer, model.arena.moment().layer);
        used += static_cast<size_t>(planned[next++].bytes);
        highest = std::max(highest, used);
      });
      model.step(std::vector<Batch>(2, random_batch(2, 5, 1, 19)));
      model->evaluate(model.ctx, random_batch(2, 5, 2, 19));
      model.arena.observe({});
      EXPECT_EQ(next, planned.size());
      EXPECT_EQ(highest, model.plan.peak_bytes);
      size_t items = 0;
      for (const PlanItem& item : model.plan.items()) items += item.bytes;
      EXPECT_EQ(items, model.plan.peak_bytes);
    }
  }
}

}  // namespace
}  // namespace yoke
