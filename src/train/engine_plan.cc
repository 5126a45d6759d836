// What a run will take, from the run's own code on the dry device, and the rates that turn its work into time.
#include <algorithm>
#include <chrono>

#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"
#include "train/engine.h"

namespace yoke {

EnginePlan plan_engine(const Device& device, const ModelConfig& config, const EngineOptions& options,
                       const DeviceRates& rates) {
  const Device dry = Device::dry(device, rates);
  Arena arena;
  Stream stream;
  Context ctx{dry, stream, arena};
  Engine engine(ctx, config, options);
  Batch batch{.rows = options.micro_batch, .length = options.sequence_length, .supervised = 1};
  for (auto* field : {&batch.tokens, &batch.targets, &batch.positions, &batch.key_begin}) {
    field->resize(static_cast<size_t>(batch.rows * batch.length));
  }
  engine.initialise(ctx, 0);
  stream.clear_totals();
  engine.step(ctx, std::vector<Batch>(static_cast<size_t>(options.micro_batches), batch), {});
  EnginePlan plan{.step_seconds = stream.clock()};
  for (const auto& [op, totals] : stream.totals()) plan.step_flops += totals.flops;
  engine.evaluate(ctx, batch);
  plan.peak_bytes = arena.peak();
  plan.alive_at_peak = arena.alive_at_peak();
  return plan;
}

namespace {

/// The shortest of some runs of `work`, seconds.
template <class Work>
double shortest(int repeats, const Work& work) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

DeviceRates measure_rates(const Device& device, DType compute) {
  constexpr int64_t kSide = 1536, kStream = int64_t{8} << 20;
  const MemoryBlock block(size_t{160} << 20);
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  DeviceRates rates;
  {
    ArenaScope scope(arena);
    Matmul product{.a = arena.allocate("a", compute, {kSide, kSide}),
                   .b = arena.allocate("b", compute, {kSide, kSide}),
                   .c = arena.allocate("c", compute, {kSide, kSide}),
                   .transpose_b = true};
    fill(ctx, {.y = product.a, .value = 0.5f});
    fill(ctx, {.y = product.b, .value = 0.5f});
    const double seconds = shortest(8, [&] { matmul(ctx, product); });
    rates.flops_per_second = 2.0 * kSide * kSide * kSide / seconds;
  }
  const TensorView a = arena.allocate("a", DType::f32, {kStream}), b = arena.allocate("b", DType::f32, {kStream}),
                   c = arena.allocate("c", DType::f32, {kStream});
  fill(ctx, {.y = a, .value = 1});
  fill(ctx, {.y = b, .value = 1});
  const double seconds = shortest(6, [&] { add(ctx, {.a = a, .b = b, .y = c}); });
  rates.bytes_per_second = 3.0 * sizeof(float) * kStream / seconds;
  return rates;
}

}  // namespace yoke
