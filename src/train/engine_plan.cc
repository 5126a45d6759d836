// What a run will take, from the run's own code on the dry device, and the rates that turn its work into time.
#include "train/engine_plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"
#include "train/pipeline_cost.h"

namespace yoke {

std::vector<PlanItem> EnginePlan::items() const {
  std::map<std::pair<MemoryKind, std::string_view>, PlanItem> sums;
  for (const Arena::Allocation& a : alive_at_peak) {
    if (a.bytes == 0) continue;
    PlanItem& item = sums[{a.kind, a.name}];
    item.name = a.name;
    item.kind = a.kind;
    ++item.count;
    item.bytes += a.bytes;
  }
  std::vector<PlanItem> items;
  for (auto& [key, item] : sums) items.push_back(std::move(item));
  std::stable_sort(items.begin(), items.end(), [](const PlanItem& a, const PlanItem& b) {
    return a.kind != b.kind ? a.kind < b.kind : a.bytes > b.bytes;
  });
  return items;
}

std::string EnginePlan::peak_text() const {
  std::string text = moment_of_peak.part;
  if (moment_of_peak.layer >= 0) text += fmt::format(" of layer {}", moment_of_peak.layer);
  if (std::string_view(moment_of_peak.stage) == "evaluation") text = "evaluation, " + text;
  if (text.empty()) text = moment_of_peak.stage;
  return alive_at_peak.empty() ? text : fmt::format("{}, in '{}'", text, alive_at_peak.back().name);
}

namespace {

struct Work {
  double flops = 0, seconds = 0;
};

/// A step of this many micro-batches.
Work dry_step(Context& ctx, Engine& engine, const Batch& batch, int64_t micro_batches) {
  ctx.stream.clear_totals();
  engine.step(ctx, std::vector<Batch>(static_cast<size_t>(micro_batches), batch), {});
  Work work{.seconds = ctx.stream.clock()};
  for (const auto& [op, totals] : ctx.stream.totals()) work.flops += totals.flops;
  return work;
}

}  // namespace

EnginePlan plan_engine(const Device& device, const ModelConfig& config, const EngineOptions& options,
                       const DeviceRates& rates, int rank) {
  const Device dry = Device::dry(device, rates);
  Arena arena;
  Stream stream;
  Context ctx{dry, stream, arena};
  const Parallel parallel = Parallel::dry(options.mesh, rank);
  Engine engine(ctx, config, options, parallel);
  const Batch batch{.rows = options.micro_batch, .length = options.sequence_length, .supervised = 1};
  engine.initialise(ctx, 0);
  EnginePlan plan;
  const Work one = dry_step(ctx, engine, batch, 1);

  for (const Arena::Allocation& a : arena.alive()) plan.timeline.before[static_cast<size_t>(a.kind)] += a.bytes;
  arena.observe([&](const Arena::Allocation& a, bool allocated) {
    const auto bytes = static_cast<int64_t>(a.bytes);
    plan.timeline.events.push_back({stream.clock(), allocated ? bytes : -bytes, a.kind, arena.moment()});
  });
  const int64_t count = std::min<int64_t>(2, options.micro_batches);
  const Work last = dry_step(ctx, engine, batch, count);
  if (options.evaluates) engine.evaluate(ctx, batch);
  arena.observe({});
  plan.timeline.seconds = stream.clock();

  const auto further = static_cast<double>(options.micro_batches - count);
  plan.step_flops = last.flops + further * (last.flops - one.flops);
  plan.step_seconds = last.seconds + further * (last.seconds - one.seconds);
  if (options.mesh.pipeline > 1 && rates.flops_per_second > 0) {  // other stages are waited for
    const PipelineTimeline timeline = pipeline_timeline_of(device, config, options, rates);
    plan.step_seconds += timeline.seconds - timeline.busy(parallel.mesh().place().pipeline);
  }
  plan.peak_bytes = arena.peak();
  plan.alive_at_peak = arena.alive_at_peak();
  plan.moment_of_peak = arena.moment_of_peak();
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

DeviceRates measure_rates(const Device& device, DType compute, double budget) {
  // Streams have to be larger than caches are; where memory is that scarce, smaller ones have to do.
  constexpr double kMost = 0x1.8p26, kLeast = 0x1p20;
  const double bytes = std::clamp(budget / 2, kLeast, kMost);
  const int64_t stream_elements = static_cast<int64_t>(bytes / (3 * sizeof(float))) / 64 * 64;
  const int64_t side = std::min<int64_t>(1536, static_cast<int64_t>(std::sqrt(bytes / (3 * sizeof(float)))) / 64 * 64);
  const MemoryBlock block(static_cast<size_t>(bytes) + (size_t{1} << 16) + (size_t{40} << 20));
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  DeviceRates rates;
  {
    ArenaScope scope(arena);
    Matmul product{.a = arena.allocate("a", compute, {side, side}),
                   .b = arena.allocate("b", compute, {side, side}),
                   .c = arena.allocate("c", compute, {side, side}),
                   .transpose_b = true};
    fill(ctx, {.y = product.a, .value = 0.5f});
    fill(ctx, {.y = product.b, .value = 0.5f});
    const double seconds = shortest(8, [&] { matmul(ctx, product); });
    rates.flops_per_second = 2.0 * static_cast<double>(side * side * side) / seconds;
  }
  const TensorView a = arena.allocate("a", DType::f32, {stream_elements}),
                   b = arena.allocate("b", DType::f32, {stream_elements}),
                   c = arena.allocate("c", DType::f32, {stream_elements});
  fill(ctx, {.y = a, .value = 1});
  fill(ctx, {.y = b, .value = 1});
  const double seconds = shortest(6, [&] { add(ctx, {.a = a, .b = b, .y = c}); });
  rates.bytes_per_second = 3.0 * sizeof(float) * static_cast<double>(stream_elements) / seconds;
  return rates;
}

}  // namespace yoke
