#include "train/pipeline_cost.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "train/context_batch.h"
#include "train/pipeline_stages.h"

namespace yoke {

namespace {

/// What one micro-batch takes in one stage. Where backward is one pass, all of it is the input half's.
struct StageTimes {
  double forward = 0, backward_input = 0, backward_weight = 0;
};

/// Each the least of `tries`, by a clock in seconds. Everything is allocated in ctx.arena. `links`: for what stages
/// send within themselves.
StageTimes run_stage(Context& ctx, const ModelConfig& config, const EngineOptions& options, const LinkRates& links,
                     int stage, int tries, const std::function<double()>& clock) {
  const PipelineShape shape = options.pipeline();
  const int rank = shape.rank_of(stage);
  const Mesh mesh(options.mesh);
  const Parallel parallel = dry_parallel(options.mesh, mesh.rank_of({.pipeline = rank}), links);
  ModelPart part{.tensor = {0, options.mesh.tensor}};
  const auto pieces = pipeline_pieces(config, options.sequence_length, shape.ranks, shape.pieces, rank);
  part.pieces = {pieces[static_cast<size_t>(shape.piece_of(stage))]};
  Arena& arena = ctx.arena;
  Transformer transformer(config, options.compute, options.recompute, options.recompute_layers, part, &parallel);
  transformer.prepare_positions(ctx, options.sequence_length);
  const ParameterTable& table = transformer.parameters();
  WeightStore weights(ParameterBuffers(arena, "weight", table, options.compute, MemoryKind::weights));
  GradientStore gradients(ParameterBuffers(arena, "gradient", table, DType::f32, MemoryKind::gradients));
  const Batch mine =
      context_part({.rows = options.micro_batch, .length = options.sequence_length}, 0, options.mesh.context);
  const DeviceBatch batch(arena, mine.rows, mine.length);
  MicroBatchMemory memory = transformer.allocate(arena, batch.size(), false);
  const TensorView losses = arena.allocate("losses", DType::f32, {batch.size()}, MemoryKind::loss);
  const TensorView message = arena.allocate("message", options.compute,
                                            {batch.size() / options.mesh.tensor, config.hidden}, MemoryKind::scratch);
  const bool split = options.schedule == PipelineSchedule::zero_bubble, ends = part.pieces[0].ends;
  if (split) transformer.defer(transformer.allocate_deferred(arena, batch.size()), memory);
  const TensorView gradient = ends ? memory.final_norm : message;
  const int64_t chunk =
      options.loss_chunk > 0 ? options.loss_chunk : default_loss_chunk(config, options.compute, batch.size());
  StageTimes least;
  for (int i = 0; i < tries; ++i) {
    gradients.begin_step(ctx, 1);
    const double begin = clock();
    transformer.forward(ctx, batch, weights, memory, {message, message});
    const double middle = clock();
    if (ends) transformer.loss(ctx, batch, weights, memory, {.chunk = chunk}, losses, &gradients, gradient);
    transformer.backward(ctx, batch, weights, gradients, memory, gradient, message,
                         split ? BackwardPass::inputs : BackwardPass::whole);
    const double late = clock();
    if (split) transformer.weight_backward(ctx, batch, gradients, memory, gradient);
    const StageTimes taken{middle - begin, late - middle, clock() - late};
    if (i == 0) least = taken;
    least.forward = std::min(least.forward, taken.forward);
    least.backward_input = std::min(least.backward_input, taken.backward_input);
    least.backward_weight = std::min(least.backward_weight, taken.backward_weight);
  }
  return least;
}

/// Of a micro-batch between two stages.
double message_time(const ModelConfig& config, const EngineOptions& options, const LinkRates& links) {
  const double elements = static_cast<double>(options.tokens() / options.mesh.tensor * config.hidden);
  const std::vector<int> members = Mesh(options.mesh).members(Group::pipeline);
  // All stages on one node, or the slowest of their links.
  return message_seconds(elements * static_cast<double>(size_of(options.compute)), links.of(members));
}

}  // namespace

PipelineTimes pipeline_times(const Device& device, const ModelConfig& config, const EngineOptions& options,
                             const DeviceRates& rates, const LinkRates& links) {
  const bool timed = rates.flops_per_second > 0;
  const Device dry = Device::dry(device, timed ? rates : DeviceRates{.flops_per_second = 1});
  PipelineTimes times;
  for (int stage = 0; stage < options.pipeline().stages(); ++stage) {
    Arena arena;
    Stream stream;
    Context ctx{dry, stream, arena};
    const StageTimes taken =
        run_stage(ctx, config, options, timed ? links : LinkRates{}, stage, 1, [&] { return stream.clock(); });
    times.forward.push_back(taken.forward);
    times.backward_input.push_back(taken.backward_input);
    times.backward_weight.push_back(taken.backward_weight);
  }
  if (timed) times.message = message_time(config, options, links);
  return times;
}

PipelineTimes measured_pipeline_times(const Device& device, const ModelConfig& config, const EngineOptions& options,
                                      int rank) {
  const PipelineShape shape = options.pipeline();
  YOKE_ASSERT(options.mesh.tensor == 1 && options.mesh.context == 1, "these need ranks to talk to");
  PipelineTimes times = PipelineTimes::even(shape.stages(), 0, 0, 0);
  const auto clock = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  for (int stage = rank; stage < shape.stages(); stage += shape.ranks) {
    const Device dry = Device::dry(device);
    Arena sizes;
    Stream counted, stream;
    Context counting{dry, counted, sizes};
    run_stage(counting, config, options, {}, stage, 1, clock);
    const MemoryBlock block(sizes.peak());
    Arena arena(block.data(), block.bytes());
    Context ctx{device, stream, arena};
    // The first try makes what libraries keep.
    const StageTimes taken = run_stage(ctx, config, options, {}, stage, 4, clock);
    const auto at = static_cast<size_t>(stage);
    times.forward[at] = taken.forward;
    times.backward_input[at] = taken.backward_input;
    times.backward_weight[at] = taken.backward_weight;
  }
  return times;
}

PipelineTimeline pipeline_timeline_of(const Device& device, const ModelConfig& config, const EngineOptions& options,
                                      const DeviceRates& rates, const LinkRates& links) {
  return pipeline_timeline(pipeline_walk(options.schedule, options.pipeline()),
                           pipeline_times(device, config, options, rates, links));
}

}  // namespace yoke
