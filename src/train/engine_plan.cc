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
  StepTraffic traffic{};
};

/// A step of this many micro-batches.
Work dry_step(Context& ctx, Engine& engine, const Batch& batch, int64_t micro_batches) {
  const auto group = [&](size_t g) -> Communicator& { return engine.parallel()[static_cast<Group>(g)]; };
  const auto flops = [&] {
    double sum = 0;
    for (const auto& [op, totals] : ctx.stream.totals()) sum += totals.flops;
    return sum;
  };
  // The clock goes on from step to step, as messages that are on their way have it.
  const double begin = ctx.stream.clock(), flops_before = flops();
  for (size_t g = 0; g < kGroups; ++g) group(g).clear_traffic();
  engine.step(ctx, std::vector<Batch>(static_cast<size_t>(micro_batches), batch), {});
  Work work{.flops = flops() - flops_before, .seconds = ctx.stream.clock() - begin};
  for (size_t g = 0; g < kGroups; ++g) work.traffic[g] = group(g).traffic();
  return work;
}

/// Micro-batches that dry steps run: `few`, then `many`; from there on each further `period` adds what those between
/// the two did.
struct DrySteps {
  int64_t few = 1, many = 1, period = 1;
};

DrySteps dry_steps(const EngineOptions& options) {
  const int64_t all = options.micro_batches;
  if (options.mesh.pipeline == 1 || options.zero < 3) return {1, std::min<int64_t>(2, all), 1};
  const int64_t period = options.schedule == PipelineSchedule::interleaved ? options.mesh.pipeline : 1;
  const int64_t settled = 3 * int64_t{options.mesh.pipeline} * options.virtual_stages;
  const int64_t many = all <= settled ? all : settled + (all - settled) % period;
  return {std::max<int64_t>(many - period, 1), many, period};
}

/// plan_engine() without what other stages of a pipeline are waited for.
EnginePlan plan_alone(const Device& device, const ModelConfig& config, const EngineOptions& options,
                      const DeviceRates& rates, const LinkRates& links, int rank) {
  const Device dry = Device::dry(device, rates);
  Arena arena;
  Stream stream;
  Context ctx{dry, stream, arena};
  const Parallel parallel = dry_parallel(options.mesh, rank, links);
  Engine engine(ctx, config, options, parallel);
  const Batch batch{.rows = options.micro_batch, .length = options.sequence_length, .supervised = 1};
  engine.initialise(ctx, 0);
  EnginePlan plan{.rank = rank};
  const DrySteps steps = dry_steps(options);
  const Work one = dry_step(ctx, engine, batch, steps.few);

  for (const Arena::Allocation& a : arena.alive()) plan.timeline.before[static_cast<size_t>(a.kind)] += a.bytes;
  arena.observe([&, begin = stream.clock()](const Arena::Allocation& a, bool allocated) {
    const auto bytes = static_cast<int64_t>(a.bytes);
    plan.timeline.events.push_back({stream.clock() - begin, allocated ? bytes : -bytes, a.kind, arena.moment()});
  });
  const double begin = stream.clock();
  const Work last = dry_step(ctx, engine, batch, steps.many);
  if (options.evaluates) engine.evaluate(ctx, batch);
  arena.observe({});
  plan.timeline.seconds = stream.clock() - begin;

  const auto further = static_cast<double>((options.micro_batches - steps.many) / steps.period);
  plan.step_flops = last.flops + further * (last.flops - one.flops);
  plan.step_seconds = last.seconds + further * (last.seconds - one.seconds);
  for (size_t g = 0; g < kGroups; ++g) {
    const Traffic &few = one.traffic[g], &many = last.traffic[g];
    plan.traffic[g] = {
        .collectives = many.collectives + static_cast<int64_t>(further) * (many.collectives - few.collectives),
        .bytes = many.bytes + further * (many.bytes - few.bytes),
        .waited = many.waited + further * (many.waited - few.waited)};
  }
  plan.peak_bytes = arena.peak();
  plan.alive_at_peak = arena.alive_at_peak();
  plan.moment_of_peak = arena.moment_of_peak();
  return plan;
}

bool waits_for_stages(const EngineOptions& options, const DeviceRates& rates) {
  return options.mesh.pipeline > 1 && rates.flops_per_second > 0;
}

double idle_seconds(const PipelineTimeline& timeline, int stage) { return timeline.seconds - timeline.busy(stage); }

/// Of a stage's ranks the first of those whose shard takes most; ranks that hold the same shard take the same.
StagePlan stage_with_most_state(const ModelConfig& config, const EngineOptions& options, int stage) {
  const Mesh mesh(options.mesh);
  StagePlan most;
  const int shards = options.zero > 0 ? options.mesh.shards() : 1;
  for (int shard = 0; shard < shards; ++shard) {
    const int context = options.mesh.context;
    const int rank = mesh.rank_of({.data = shard / context, .context = shard % context, .pipeline = stage});
    const size_t bytes = state_bytes(config, options, rank);
    if (bytes > most.state_bytes) most = {.rank = rank, .state_bytes = bytes};
  }
  return most;
}

}  // namespace

EnginePlan plan_engine(const Device& device, const ModelConfig& config, const EngineOptions& options,
                       const DeviceRates& rates, int rank, const LinkRates& links) {
  EnginePlan plan = plan_alone(device, config, options, rates, links, rank);
  if (waits_for_stages(options, rates)) {
    const int stage = Mesh(options.mesh, rank).place().pipeline;
    plan.step_seconds += idle_seconds(pipeline_timeline_of(device, config, options, rates, links), stage);
  }
  return plan;
}

EnginePlan plan_mesh(const Device& device, const ModelConfig& config, const EngineOptions& options,
                     const DeviceRates& rates, const LinkRates& links) {
  EnginePlan worst;
  std::vector<StagePlan> stages;
  double flops = 0, seconds = 0;
  std::optional<PipelineTimeline> timeline;
  if (waits_for_stages(options, rates)) timeline = pipeline_timeline_of(device, config, options, rates, links);
  for (int stage = 0; stage < options.mesh.pipeline; ++stage) {
    stages.push_back(stage_with_most_state(config, options, stage));
    EnginePlan plan = plan_alone(device, config, options, rates, links, stages.back().rank);
    stages.back().peak_bytes = plan.peak_bytes;
    flops = std::max(flops, plan.step_flops);
    seconds = std::max(seconds, plan.step_seconds + (timeline ? idle_seconds(*timeline, stage) : 0));
    if (plan.peak_bytes > worst.peak_bytes) worst = std::move(plan);
  }
  worst.stages = std::move(stages);
  worst.step_flops = flops;
  worst.step_seconds = seconds;
  return worst;
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
