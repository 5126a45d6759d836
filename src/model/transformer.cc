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

Transformer::Transformer(const ModelConfig& config, DType compute, Recompute recompute, int64_t recompute_layers,
                         const ModelPart& part, const Parallel* parallel)
    : config_(checked(config)),
      shard_(part.tensor),
      tensor_(parallel == nullptr ? nullptr : &(*parallel)[Group::tensor]),
      context_(parallel == nullptr ? nullptr : &(*parallel)[Group::context]),
      local_(config_.local(shard_)),
      parameters_(config_, part),
      compute_(compute),
      kept_(local_, compute, Recompute::none, shard_.size),
      recomputed_(local_, compute, recompute, shard_.size),
      recompute_layers_(recompute_layers < 0 ? config.layers : recompute_layers) {
  YOKE_ASSERT(shard_of(tensor_) == shard_, "part {} of {} of a model", shard_.rank, shard_.size);
  for (int64_t l = 0; l < config_.layers; ++l) blocks_.emplace_back(local_, parameters_, l);
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
  const int64_t slice = tokens / shard_.size;
  memory.final_input = arena.allocate("final_input", compute_, {slice, config_.hidden}, kind);
  memory.final_rstd = arena.allocate("final_rstd", DType::f32, {slice}, kind);
  memory.final_norm = arena.allocate("final_norm", compute_, {slice, config_.hidden}, kind);
  return memory;
}

BlockInputs Transformer::inputs(const DeviceBatch& batch) const {
  return {.batch = batch.rows,
          .length = batch.length,
          .positions = batch.positions,
          .key_begin = batch.key_begin,
          .rope = rope_,
          .tensor = tensor_,
          .context = context_};
}

void Transformer::run_blocks(Context& ctx, const BlockInputs& in, const TensorView& tokens, WeightStore& weights,
                             MicroBatchMemory& memory) const {
  TensorView residual = memory.blocks[0].input, delta;
  {
    ArenaScope scope(ctx.arena);
    const TensorView addends = room_for_tokens(ctx, tensor_, residual);
    embedding_forward(
        ctx, {.tokens = tokens, .table = weights.get(parameters_.embedding()), .y = addends, .first = first_id()});
    scatter_tokens(ctx, tensor_, addends, residual, "embedding");
  }
  for (int64_t l = 0; l < config_.layers; ++l) {
    ctx.arena.enter("forward", l);
    BlockActivations& a = memory.blocks[static_cast<size_t>(l)];
    weights.acquire(ctx, l);
    if (l + 1 < config_.layers) weights.gather(ctx, l + 1);
    blocks_[static_cast<size_t>(l)].forward(ctx, in, residual, delta, weights, a);
    weights.release(l);
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

void Transformer::forward(Context& ctx, const DeviceBatch& batch, WeightStore& weights,
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

void Transformer::chunk_losses(Context& ctx, const TensorView& logits, const TensorView& targets,
                               const TensorView& losses, bool gradient, float scale) const {
  const TensorView dlogits = gradient ? logits : TensorView{};
  if (!divided(tensor_)) {
    cross_entropy(ctx, {.logits = logits, .targets = targets, .loss = losses, .dlogits = dlogits, .scale = scale});
    return;
  }
  ArenaScope scope(ctx.arena);
  const int64_t tokens = logits.rows();
  const TensorView sums = ctx.arena.allocate("sums of logits", DType::f64,
                                             {shard_.size, tokens, CrossEntropySums::kSums}, MemoryKind::loss);
  const TensorView flat = reshape(sums, {shard_.size * tokens, CrossEntropySums::kSums});
  const TensorView own = rows(flat, shard_.rank * tokens, tokens);
  cross_entropy_sums(
      ctx, {.logits = logits, .targets = targets, .sums = own, .first = first_id(), .vocabulary = config_.vocabulary});
  tensor_->run(ctx, {.kind = CollectiveKind::all_gather, .input = own, .output = flat, .what = "sums of logits"});
  cross_entropy_shard(ctx, {.logits = logits,
                            .targets = targets,
                            .sums = sums,
                            .loss = losses,
                            .dlogits = dlogits,
                            .scale = scale,
                            .first = first_id(),
                            .vocabulary = config_.vocabulary});
}

void Transformer::loss(Context& ctx, const DeviceBatch& batch, const WeightStore& weights,
                       const MicroBatchMemory& memory, const LossOptions& options, const TensorView& token_loss,
                       GradientStore* gradients, const TensorView& gradient) const {
  ctx.arena.enter("loss");
  ArenaScope scope(ctx.arena);
  const int64_t chunk = std::min(options.chunk, batch.size());
  YOKE_ASSERT(chunk > 0);
  const TensorView buffer = ctx.arena.allocate("logits chunk", compute_, {chunk, local_.vocabulary}, MemoryKind::loss);
  const TensorView& head = weights.get(parameters_.head());
  const TensorView all = gather_tokens(ctx, tensor_, memory.final_norm, "head input");  // [T, h]
  const TensorView dall =
      divided(tensor_) ? all : gradient;  // a chunk's place is free once its weight gradient is there
  for (int64_t first = 0; first < batch.size(); first += chunk) {
    const int64_t count = std::min(chunk, batch.size() - first);
    const TensorView x = rows(all, first, count);      // [C, h]
    const TensorView logits = rows(buffer, 0, count);  // [C, V]
    linear_forward(ctx, x, head, {}, logits);
    const auto slice = [&](const TensorView& t) { return columns(reshape(t, {1, batch.size()}), first, count); };
    chunk_losses(ctx, logits, slice(batch.targets), slice(token_loss), gradients != nullptr, options.scale);
    if (gradients != nullptr) {
      linear_weight_backward(ctx, x, logits, *gradients, parameters_.head());
      matmul(ctx, {.a = logits, .b = head, .c = rows(dall, first, count)});
    }
  }
  if (gradients != nullptr) scatter_tokens(ctx, tensor_, dall, gradient, "head input gradient");
  // A tied head's gradient is complete with the embedding's share of it.
  if (gradients != nullptr && parameters_.head() != parameters_.embedding()) gradients->notify(parameters_.head());
}

void Transformer::backward(Context& ctx, const DeviceBatch& batch, WeightStore& weights, GradientStore& gradients,
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
    weights.acquire(ctx, l);
    if (l > 0) weights.gather(ctx, l - 1);
    table.allocate(ctx.arena, Fate::recomputed, batch.size(), a, BlockPart::attention);
    {
      ArenaScope mlp(ctx.arena);
      table.allocate(ctx.arena, Fate::recomputed, batch.size(), a, BlockPart::mlp);
      if (table.fate(&BlockActivations::mid) == Fate::recomputed) {
        table.allocate(ctx.arena, Fate::scratch, batch.size(), a);
      }
      block.recompute(ctx, in, weights, table, a);
      block.mlp_backward(ctx, in, weights, gradients, a, gradient);
    }
    block.attention_backward(ctx, in, weights, gradients, a, gradient);
    weights.release(l);
  }
  ctx.arena.enter("backward");
  ArenaScope scope(ctx.arena);
  const TensorView dy = gather_tokens(ctx, tensor_, gradient, "embedding gradient");
  const auto embedding = gradients.get(parameters_.embedding());
  embedding_backward(ctx, {.tokens = batch.tokens,
                           .dy = dy,
                           .dtable = embedding.gradient,
                           .accumulate = embedding.accumulate,
                           .first = first_id()});
  gradients.notify(parameters_.embedding());
}

void Transformer::decode(Context& ctx, const TensorView& tokens, const TensorView& positions,
                         const TensorView& key_begin, WeightStore& weights, KeyValueCache& cache,
                         const TensorView& logits) const {
  YOKE_ASSERT(!divided(tensor_), "one rank generates");
  ArenaScope scope(ctx.arena);
  const int64_t count = tokens.elements();
  MicroBatchMemory memory = allocate(ctx.arena, count, true);
  const BlockInputs in{
      .batch = 1, .length = count, .positions = positions, .key_begin = key_begin, .rope = rope_, .cache = &cache};
  run_blocks(ctx, in, tokens, weights, memory);
  linear_forward(ctx, rows(memory.final_norm, count - 1, 1), weights.get(parameters_.head()), {}, logits);
  cache.filled += count;
}

double sum_of_losses(Context& ctx, const Transformer& transformer, WeightStore& weights, const DeviceBatch& batch,
                     int64_t loss_chunk) {
  ArenaScope scope(ctx.arena);
  MicroBatchMemory memory = transformer.allocate(ctx.arena, batch.size(), true);
  transformer.forward(ctx, batch, weights, memory);
  const TensorView losses = ctx.arena.allocate("evaluation losses", DType::f32, {batch.size()}, MemoryKind::loss);
  transformer.loss(ctx, batch, weights, memory, {.chunk = loss_chunk}, losses, nullptr, {});
  const std::vector<float> host = downloaded<float>(ctx, losses);
  return std::accumulate(host.begin(), host.end(), 0.0);
}

namespace {

/// Elements [begin, end) of a part, counted from its first here, from the numbers that they have in the whole tensor.
void fill_part(Context& ctx, const TensorView& flat, const ParameterRow& row, const ParameterPart& part, int64_t begin,
               const RandomStream& random, float deviation) {
  const int64_t cols = row.shape.cols(), step = row.whole.cols(), count = flat.elements();
  for (int64_t at = 0; at < count;) {
    const int64_t element = begin + at, col = element % cols;
    // All at once where every column is here; else whole rows, and what is left of one at either end.
    int64_t n = cols == step ? count : std::min(cols - col, count - at), lines = 1;
    if (cols != step && col == 0 && count - at >= cols) lines = (count - at) / cols;
    fill_normal(ctx, {.y = reshape(slice(flat, at, lines * n), {lines, n}),
                      .random = random,
                      .first = static_cast<uint64_t>((part.file_row + element / cols) * step + row.first_col + col),
                      .deviation = deviation,
                      .row_step = lines > 1 ? step : 0});
    at += lines * n;
  }
}

}  // namespace

void initialise_parameters(Context& ctx, const ModelConfig& config, const ParameterTable& table,
                           const ParameterBuffers& values, const std::function<ElementRange(size_t row)>& owned,
                           uint64_t seed) {
  for (size_t i = 0; i < table.size(); ++i) {
    const ParameterRow& row = table[i];
    if (values[i].absent()) continue;
    if (row.init != ParameterRow::Init::normal) {
      fill(ctx, {.y = values[i], .value = row.init == ParameterRow::Init::ones ? 1.0f : 0.0f});
      continue;
    }
    const ElementRange range = owned(i);
    const int64_t cols = row.shape.cols();
    for (size_t p = 0; p < row.parts.size(); ++p) {
      const ParameterPart& part = row.parts[p];
      const int64_t first = part.row * cols, last = first + part.rows * cols;
      const int64_t begin = std::max(first, range.begin), end = std::min(last, range.end);
      if (begin >= end) continue;
      fill_part(ctx, slice(values[i], begin - range.begin, end - begin), row, part, begin - first,
                {seed, row.id * 8 + p}, static_cast<float>(config.initializer_range));
    }
    const int64_t padding = std::max((row.shape_rows() - row.pad_rows()) * cols, range.begin);
    if (padding < range.end) {
      fill(ctx, {.y = slice(values[i], padding - range.begin, range.end - padding), .value = 0});
    }
  }
}

}  // namespace yoke
