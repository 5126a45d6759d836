// One rank's pass, or its optimizer steps, over its part of a batch, for tests of context parallelism by threads and by
// MPI.
#pragma once

#include <cmath>

#include "device/transfer.h"
#include "model/transformer.h"
#include "ops/elementwise/elementwise.h"
#include "tests/train/support.h"
#include "train/context_batch.h"

namespace yoke::test {

inline constexpr int64_t kContextLength = 48;  // 2, 3 and 4 ranks have chunks of 12, 8 and 6

/// Rows of random tokens in documents that begin at 0 and at `borders`.
inline Batch packed_batch(const std::vector<std::vector<int64_t>>& borders, uint64_t seed,
                          int64_t length = kContextLength) {
  const auto rows = static_cast<int64_t>(borders.size());
  Batch batch = random_batch(rows, rows * length * 3 / 4, seed, length);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t begin = 0;
    for (int64_t i = 0; i < length; ++i) {
      for (const int64_t border : borders[static_cast<size_t>(row)]) begin = border == i ? i : begin;
      batch.positions[static_cast<size_t>(row * length + i)] = static_cast<int32_t>(i - begin);
      batch.key_begin[static_cast<size_t>(row * length + i)] = static_cast<int32_t>(begin);
    }
  }
  return batch;
}

/// Borders inside chunks and at borders of chunks of 2, 3 and 4 ranks.
inline Batch packed_batch() { return packed_batch({{12, 17, 40}, {5, 6, 24, 36}}, 3); }

struct Outcome {
  double loss = 0;
  std::vector<float> token_losses;             // of the rank's tokens
  std::vector<std::vector<double>> gradients;  // by parameter
  double forward_bytes = 0, backward_bytes = 0;
  size_t peak = 0;
  double attention_flops = 0;
};

struct Setting {
  ModelConfig config;
  DType compute = DType::f32;
  Recompute recompute = Recompute::none;
};

/// Forward, loss and backward of one rank; on the dry device where `dry`. `supervised`: of the whole batch.
inline Outcome run_rank(const Setting& setting, const Batch& batch, int64_t supervised, const Parallel& parallel,
                        bool dry) {
  const Communicator& context = parallel[Group::context];
  const Device cpu = Device::cpu(1), device = dry ? Device::dry(cpu) : cpu;
  const MemoryBlock block(dry ? 0 : size_t{64} << 20);
  Arena arena = dry ? Arena() : Arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  Transformer transformer(setting.config, setting.compute, setting.recompute, -1, {}, &parallel);
  const ParameterTable& table = transformer.parameters();
  const ParameterBuffers master(arena, "master", table, DType::f32, MemoryKind::master);
  const ParameterBuffers weights(arena, "weight", table, setting.compute, MemoryKind::weights);
  const ParameterBuffers gradients(arena, "gradient", table, DType::f32, MemoryKind::gradients);
  const auto all = [&](size_t row) { return ElementRange{0, table[row].shape.elements()}; };
  initialise_parameters(ctx, setting.config, table, master, all, 1);
  for (size_t i = 0; i < table.size(); ++i) convert(ctx, {.x = master[i], .y = weights[i]});
  WeightStore weight_store(weights);
  GradientStore gradient_store(gradients);
  gradient_store.begin_step(ctx, 1);
  transformer.prepare_positions(ctx, kContextLength);

  const DeviceBatch room(arena, batch.rows, batch.length);
  const DeviceBatch input =
      room.upload(ctx, batch.rows, batch.length, batch.tokens, batch.targets, batch.positions, batch.key_begin);
  MicroBatchMemory memory = transformer.allocate(arena, input.size(), false);
  const TensorView losses = arena.allocate("losses", DType::f32, {input.size()}, MemoryKind::loss);
  Outcome outcome;
  transformer.forward(ctx, input, weight_store, memory);
  outcome.forward_bytes = context.traffic().bytes;
  const LossOptions options{.chunk = 16, .scale = 1 / static_cast<float>(supervised)};
  transformer.loss(ctx, input, weight_store, memory, options, losses, &gradient_store, memory.final_norm);
  transformer.backward(ctx, input, weight_store, gradient_store, memory, memory.final_norm);
  outcome.backward_bytes = context.traffic().bytes - outcome.forward_bytes;
  outcome.peak = arena.peak();
  for (const auto& [op, totals] : stream.totals()) {
    if (op == "attention_forward" || op == "attention_backward") outcome.attention_flops += totals.flops;
  }
  outcome.token_losses = downloaded<float>(ctx, losses);
  for (const float loss : outcome.token_losses) outcome.loss += static_cast<double>(loss);
  for (size_t i = 0; i < table.size() && !dry; ++i) {
    const auto values = downloaded<float>(ctx, gradients[i]);
    outcome.gradients.emplace_back(values.begin(), values.end());
  }
  return outcome;
}

/// Norm of the difference over the norm of `want`.
inline double distance(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    square += want[i] * want[i];
  }
  return std::sqrt(difference / square);
}

inline double largest_distance(const Outcome& got, const Outcome& want) {
  double largest = 0;
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    largest = std::max(largest, distance(got.gradients[i], want.gradients[i]));
  }
  return largest;
}

struct Steps {
  std::vector<double> losses, norms;
  double evaluation = 0;
};

/// Optimizer steps of two micro-batches, then an evaluation.
inline Steps run_steps(const ModelConfig& config, const EngineOptions& options, const Parallel& parallel) {
  const Device device = Device::cpu(1);
  const MemoryBlock block(size_t{64} << 20);
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  Engine engine(ctx, config, options, parallel);
  engine.initialise(ctx, 1);
  Steps steps;
  for (uint64_t step = 0; step < 3; ++step) {
    const std::vector<Batch> batches{packed_batch({{12, 17}, {}}, 2 * step), packed_batch({{}, {24}}, 2 * step + 1)};
    const StepResult result = engine.step(ctx, batches, {.learning_rate = 1e-2, .clip_norm = 1});
    steps.losses.push_back(result.loss());
    steps.norms.push_back(result.gradient_norm);
  }
  steps.evaluation = engine.evaluate(ctx, packed_batch());
  return steps;
}

}  // namespace yoke::test
