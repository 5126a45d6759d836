#include "train/pipeline_cost.h"

#include "train/context_batch.h"
#include "train/pipeline_stages.h"

namespace yoke {

namespace {

/// Forward, backward's input half and its weight half of one stage; where backward is one pass, all of it is the
/// input half's.
void add_stage(const Device& dry, const ModelConfig& config, const EngineOptions& options, const LinkRates& links,
               int stage, PipelineTimes* times) {
  const PipelineShape shape = options.pipeline();
  const int rank = shape.rank_of(stage);
  const Mesh mesh(options.mesh);
  const Parallel parallel = dry_parallel(options.mesh, mesh.rank_of({.pipeline = rank}), links);
  ModelPart part{.tensor = {0, options.mesh.tensor}};
  const auto pieces = pipeline_pieces(config, options.sequence_length, shape.ranks, shape.pieces, rank);
  part.pieces = {pieces[static_cast<size_t>(shape.piece_of(stage))]};
  Arena arena;
  Stream stream;
  Context ctx{dry, stream, arena};
  Transformer transformer(config, options.compute, options.recompute, options.recompute_layers, part, &parallel);
  transformer.prepare_positions(ctx, options.sequence_length);
  const ParameterTable& table = transformer.parameters();
  WeightStore weights(ParameterBuffers(arena, "weight", table, options.compute, MemoryKind::weights));
  GradientStore gradients(ParameterBuffers(arena, "gradient", table, DType::f32, MemoryKind::gradients));
  gradients.begin_step(ctx, 1);
  const Batch mine =
      context_part({.rows = options.micro_batch, .length = options.sequence_length}, 0, options.mesh.context);
  const DeviceBatch batch(arena, mine.rows, mine.length);
  MicroBatchMemory memory = transformer.allocate(arena, batch.size(), false);
  const TensorView losses = arena.allocate("losses", DType::f32, {batch.size()}, MemoryKind::loss);
  const TensorView message = arena.allocate("message", options.compute,
                                            {batch.size() / options.mesh.tensor, config.hidden}, MemoryKind::scratch);
  auto clock = [&, last = 0.0]() mutable {
    const double before = last;
    last = stream.clock();
    return last - before;
  };
  clock();  // the rotary table's upload
  transformer.forward(ctx, batch, weights, memory, {message, message});
  times->forward.push_back(clock());
  const bool split = options.schedule == PipelineSchedule::zero_bubble;
  TensorView gradient = message;
  if (part.pieces[0].ends) {
    gradient = memory.final_norm;
    const int64_t chunk =
        options.loss_chunk > 0 ? options.loss_chunk : default_loss_chunk(config, options.compute, batch.size());
    transformer.loss(ctx, batch, weights, memory, {.chunk = chunk}, losses, &gradients, gradient);
  }
  if (split) transformer.defer(transformer.allocate_deferred(arena, batch.size()), memory);
  transformer.backward(ctx, batch, weights, gradients, memory, gradient, message,
                       split ? BackwardPass::inputs : BackwardPass::whole);
  times->backward_input.push_back(clock());
  if (split) transformer.weight_backward(ctx, batch, gradients, memory, gradient);
  times->backward_weight.push_back(clock());
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
  const Device dry = Device::dry(device, rates.flops_per_second > 0 ? rates : DeviceRates{.flops_per_second = 1});
  PipelineTimes times;
  for (int stage = 0; stage < options.pipeline().stages(); ++stage) {
    add_stage(dry, config, options, rates.flops_per_second > 0 ? links : LinkRates{}, stage, &times);
  }
  if (rates.flops_per_second > 0) times.message = message_time(config, options, links);
  return times;
}

PipelineTimeline pipeline_timeline_of(const Device& device, const ModelConfig& config, const EngineOptions& options,
                                      const DeviceRates& rates, const LinkRates& links) {
  return pipeline_timeline(pipeline_walk(options.schedule, options.pipeline()),
                           pipeline_times(device, config, options, rates, links));
}

}  // namespace yoke
