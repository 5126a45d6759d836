#include "model/transformer.h"

#include <algorithm>
#include <numeric>

#include "device/transfer.h"
#include "model/rope_table.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/matmul/matmul.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace yoke {

DeviceBatch::DeviceBatch(Arena& arena, int64_t rows, int64_t length)
    : rows(rows),
      length(length),
      tokens(arena.allocate("batch tokens", DType::i32, {rows * length}, MemoryKind::batch)),
      targets(arena.allocate("batch targets", DType::i32, {rows * length}, MemoryKind::batch)),
      positions(arena.allocate("batch positions", DType::i32, {rows * length}, MemoryKind::batch)),
      key_begin(arena.allocate("batch key_begin", DType::i32, {rows * length}, MemoryKind::batch)) {}

DeviceBatch DeviceBatch::upload(Context& ctx, int64_t new_rows, int64_t new_length, std::span<const int32_t> new_tokens,
                                std::span<const int32_t> new_targets, std::span<const int32_t> new_positions,
                                std::span<const int32_t> new_key_begin) const {
  YOKE_ASSERT(new_rows * new_length <= size(), "a batch of {} x {} in room for {} x {}", new_rows, new_length, rows,
              length);
  DeviceBatch view;
  view.rows = new_rows;
  view.length = new_length;
  const auto send = [&](std::span<const int32_t> from, const TensorView& to) {
    const TensorView part(to.data, to.dtype, {new_rows * new_length});
    yoke::upload(ctx, from, part);
    return part;
  };
  view.tokens = send(new_tokens, tokens);
  view.targets = send(new_targets, targets);
  view.positions = send(new_positions, positions);
  view.key_begin = send(new_key_begin, key_begin);
  return view;
}

namespace {

const ModelConfig& checked(const ModelConfig& config) {
  config.validate();
  return config;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, DType compute, Recompute recompute, int64_t recompute_layers)
    : config_(checked(config)),
      parameters_(config_),
      compute_(compute),
      kept_(config_, compute, Recompute::none),
      recomputed_(config_, compute, recompute),
      recompute_layers_(recompute_layers < 0 ? config.layers : recompute_layers) {
  for (int64_t l = 0; l < config_.layers; ++l) blocks_.emplace_back(config_, parameters_, l);
}

const ActivationTable& Transformer::activations(int64_t layer) const {
  return layer < recompute_layers_ ? recomputed_ : kept_;
}

void Transformer::prepare_positions(Context& ctx, int64_t positions) {
  rope_ = ctx.arena.allocate("rope table", DType::f32, {positions, config_.head_dim}, MemoryKind::batch);
  const std::vector<float> table = ctx.device.is_dry() ? std::vector<float>() : rope_table(config_, positions);
  upload(ctx, table.data(), rope_.bytes(), rope_);
}

MicroBatchMemory Transformer::allocate(Arena& arena, int64_t tokens, bool transient) const {
  MicroBatchMemory memory{.transient = transient};
  memory.blocks.resize(static_cast<size_t>(config_.layers));
  if (transient) {
    BlockActivations shared;
    for (const Fate fate : {Fate::saved, Fate::scratch}) {
      kept_.allocate(arena, fate, tokens, shared, MemoryKind::scratch);
    }
    std::fill(memory.blocks.begin(), memory.blocks.end(), shared);
  } else {
    for (int64_t l = 0; l < config_.layers; ++l) {
      activations(l).allocate(arena, Fate::saved, tokens, memory.blocks[static_cast<size_t>(l)]);
    }
  }
  const MemoryKind kind = transient ? MemoryKind::scratch : MemoryKind::saved;
  memory.final_input = arena.allocate("final_input", compute_, {tokens, config_.hidden}, kind);
  memory.final_rstd = arena.allocate("final_rstd", DType::f32, {tokens}, kind);
  memory.final_norm = arena.allocate("final_norm", compute_, {tokens, config_.hidden}, kind);
  return memory;
}

BlockInputs Transformer::inputs(const DeviceBatch& batch) const {
  return {.batch = batch.rows,
          .length = batch.length,
          .positions = batch.positions,
          .key_begin = batch.key_begin,
          .rope = rope_};
}

void Transformer::run_blocks(Context& ctx, const BlockInputs& in, const TensorView& tokens, const WeightStore& weights,
                             MicroBatchMemory& memory) const {
  embedding_forward(ctx,
                    {.tokens = tokens, .table = weights.get(parameters_.embedding()), .y = memory.blocks[0].input});
  TensorView residual = memory.blocks[0].input, delta;
  for (int64_t l = 0; l < config_.layers; ++l) {
    ctx.arena.enter("forward", l);
    BlockActivations& a = memory.blocks[static_cast<size_t>(l)];
    blocks_[static_cast<size_t>(l)].forward(ctx, in, residual, delta, weights, a);
    residual = a.mid;
    delta = a.delta;
  }
  ctx.arena.enter("forward");
  rms_norm_forward(ctx, {.x = residual,
                         .delta = delta,
                         .weight = weights.get(parameters_.final_norm()),
                         .residual_out = memory.final_input,
                         .y = memory.final_norm,
                         .rstd = memory.final_rstd,
                         .epsilon = static_cast<float>(config_.norm_epsilon)});
}

void Transformer::forward(Context& ctx, const DeviceBatch& batch, const WeightStore& weights,
                          MicroBatchMemory& memory) const {
  ctx.arena.enter("forward");
  ArenaScope scope(ctx.arena);
  if (!memory.transient) {  // rows that are not saved live in this scope
    BlockActivations shared;
    const ActivationTable& widest = recompute_layers_ > 0 ? recomputed_ : kept_;
    for (const Fate fate : {Fate::recomputed, Fate::scratch}) widest.allocate(ctx.arena, fate, batch.size(), shared);
    for (int64_t l = 0; l < config_.layers; ++l) {
      activations(l).share(shared, memory.blocks[static_cast<size_t>(l)]);
    }
  }
  run_blocks(ctx, inputs(batch), batch.tokens, weights, memory);
}

void Transformer::loss(Context& ctx, const DeviceBatch& batch, const WeightStore& weights,
                       const MicroBatchMemory& memory, const LossOptions& options, const TensorView& token_loss,
                       GradientStore* gradients, const TensorView& gradient) const {
  ctx.arena.enter("loss");
  ArenaScope scope(ctx.arena);
  const int64_t chunk = std::min(options.chunk, batch.size());
  YOKE_ASSERT(chunk > 0);
  const TensorView buffer = ctx.arena.allocate("logits chunk", compute_, {chunk, config_.vocabulary}, MemoryKind::loss);
  const TensorView& head = weights.get(parameters_.head());
  for (int64_t first = 0; first < batch.size(); first += chunk) {
    const int64_t count = std::min(chunk, batch.size() - first);
    const TensorView x = rows(memory.final_norm, first, count);  // [C, h]
    const TensorView logits = rows(buffer, 0, count);            // [C, V]
    linear_forward(ctx, x, head, {}, logits);
    const auto slice = [&](const TensorView& t) { return columns(reshape(t, {1, batch.size()}), first, count); };
    cross_entropy(ctx, {.logits = logits,
                        .targets = slice(batch.targets),
                        .loss = slice(token_loss),
                        .dlogits = gradients == nullptr ? TensorView{} : logits,
                        .scale = options.scale});
    if (gradients != nullptr) {
      linear_weight_backward(ctx, x, logits, *gradients, parameters_.head());
      matmul(ctx, {.a = logits, .b = head, .c = rows(gradient, first, count)});
    }
  }
  // A tied head's gradient is complete with the embedding's share of it.
  if (gradients != nullptr && parameters_.head() != parameters_.embedding()) gradients->notify(parameters_.head());
}

void Transformer::backward(Context& ctx, const DeviceBatch& batch, const WeightStore& weights, GradientStore& gradients,
                           MicroBatchMemory& memory, const TensorView& gradient) const {
  ctx.arena.enter("backward");
  const BlockInputs in = inputs(batch);
  const auto slot = gradients.get(parameters_.final_norm());
  rms_norm_backward(ctx, {.dy = gradient,
                          .x = memory.final_input,
                          .weight = weights.get(parameters_.final_norm()),
                          .rstd = memory.final_rstd,
                          .dx = gradient,
                          .dweight = slot.gradient,
                          .accumulate = slot.accumulate});
  gradients.notify(parameters_.final_norm());
  for (int64_t l = config_.layers - 1; l >= 0; --l) {
    ctx.arena.enter("backward", l);
    ArenaScope scope(ctx.arena);
    BlockActivations& a = memory.blocks[static_cast<size_t>(l)];
    const ActivationTable& table = activations(l);
    const Block& block = blocks_[static_cast<size_t>(l)];
    table.allocate(ctx.arena, Fate::recomputed, batch.size(), a, BlockPart::attention);
    {
      ArenaScope mlp(ctx.arena);
      table.allocate(ctx.arena, Fate::recomputed, batch.size(), a, BlockPart::mlp);
      if (table.fate(&BlockActivations::mid) == Fate::recomputed) {
        table.allocate(ctx.arena, Fate::scratch, batch.size(), a);
      }
      block.recompute(ctx, in, weights, table, a);
      block.mlp_backward(ctx, weights, gradients, a, gradient);
    }
    block.attention_backward(ctx, in, weights, gradients, a, gradient);
  }
  ctx.arena.enter("backward");
  const auto embedding = gradients.get(parameters_.embedding());
  embedding_backward(
      ctx, {.tokens = batch.tokens, .dy = gradient, .dtable = embedding.gradient, .accumulate = embedding.accumulate});
  gradients.notify(parameters_.embedding());
}

void Transformer::decode(Context& ctx, const TensorView& tokens, const TensorView& positions,
                         const TensorView& key_begin, const WeightStore& weights, KeyValueCache& cache,
                         const TensorView& logits) const {
  ArenaScope scope(ctx.arena);
  const int64_t count = tokens.elements();
  MicroBatchMemory memory = allocate(ctx.arena, count, true);
  const BlockInputs in{
      .batch = 1, .length = count, .positions = positions, .key_begin = key_begin, .rope = rope_, .cache = &cache};
  run_blocks(ctx, in, tokens, weights, memory);
  linear_forward(ctx, rows(memory.final_norm, count - 1, 1), weights.get(parameters_.head()), {}, logits);
  cache.filled += count;
}

double sum_of_losses(Context& ctx, const Transformer& transformer, const WeightStore& weights, const DeviceBatch& batch,
                     int64_t loss_chunk) {
  ArenaScope scope(ctx.arena);
  MicroBatchMemory memory = transformer.allocate(ctx.arena, batch.size(), true);
  transformer.forward(ctx, batch, weights, memory);
  const TensorView losses = ctx.arena.allocate("evaluation losses", DType::f32, {batch.size()}, MemoryKind::loss);
  transformer.loss(ctx, batch, weights, memory, {.chunk = loss_chunk}, losses, nullptr, {});
  const std::vector<float> host = downloaded<float>(ctx, losses);
  return std::accumulate(host.begin(), host.end(), 0.0);
}

void initialise_parameters(Context& ctx, const ModelConfig& config, const ParameterTable& table,
                           const ParameterBuffers& values, uint64_t seed) {
  for (size_t i = 0; i < table.size(); ++i) {
    const ParameterRow& row = table[i];
    if (row.init != ParameterRow::Init::normal) {
      fill(ctx, {.y = values[i], .value = row.init == ParameterRow::Init::ones ? 1.0f : 0.0f});
      continue;
    }
    for (size_t part = 0; part < row.parts.size(); ++part) {
      fill_normal(ctx, {.y = rows(values[i], row.parts[part].row, row.parts[part].rows),
                        .random = {seed, i * 8 + part},
                        .deviation = static_cast<float>(config.initializer_range)});
    }
  }
}

}  // namespace yoke
