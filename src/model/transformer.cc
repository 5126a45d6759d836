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
      pieces_(part.pieces_of(config.layers)),
      parameters_(config_, part),
      compute_(compute),
      kept_(local_, compute, Recompute::none, shard_.size),
      recomputed_(local_, compute, recompute, shard_.size),
      recompute_layers_(recompute_layers < 0 ? config.layers : recompute_layers) {
  YOKE_ASSERT(shard_of(tensor_) == shard_, "part {} of {} of a model", shard_.rank, shard_.size);
  for (const ModelPiece& piece : pieces_) {
    for (int64_t i = 0; i < piece.layers; ++i) blocks_.emplace_back(local_, parameters_, piece.first_layer + i);
  }
}

const Block& Transformer::block(int64_t layer) const {
  size_t before = 0;
  for (const ModelPiece& piece : pieces_) {
    if (layer < piece.first_layer + piece.layers)
      return blocks_.at(before + static_cast<size_t>(layer - piece.first_layer));
    before += static_cast<size_t>(piece.layers);
  }
  YOKE_ASSERT(false, "layer {} is not here", layer);
}

const ActivationTable& Transformer::activations(int64_t layer) const {
  return layer < recompute_layers_ ? recomputed_ : kept_;
}

void Transformer::prepare_positions(Context& ctx, int64_t positions) {
  rope_ = ctx.arena.allocate("rope table", DType::f32, {positions, config_.head_dim}, MemoryKind::batch);
  const std::vector<float> table = ctx.device.is_dry() ? std::vector<float>() : rope_table(config_, positions);
  upload(ctx, table.data(), rope_.bytes(), rope_);
}

MicroBatchMemory Transformer::allocate(Arena& arena, int64_t tokens, bool transient, size_t number) const {
  MicroBatchMemory memory{.piece = number, .transient = transient};
  const ModelPiece& piece = pieces_[number];
  memory.blocks.resize(static_cast<size_t>(piece.layers));
  if (transient) {
    BlockActivations shared;
    for (const Fate fate : {Fate::saved, Fate::scratch}) {
      kept_.allocate(arena, fate, tokens, shared, MemoryKind::scratch);
    }
    std::fill(memory.blocks.begin(), memory.blocks.end(), shared);
  } else {
    for (int64_t i = 0; i < piece.layers; ++i) {
      activations(piece.first_layer + i).allocate(arena, Fate::saved, tokens, memory.blocks[static_cast<size_t>(i)]);
    }
  }
  if (!piece.ends) return memory;
  const MemoryKind kind = transient ? MemoryKind::scratch : MemoryKind::saved;
  const int64_t slice = tokens / shard_.size;
  memory.final_input = arena.allocate("final_input", compute_, {slice, config_.hidden}, kind);
  memory.final_rstd = arena.allocate("final_rstd", DType::f32, {slice}, kind);
  memory.final_norm = arena.allocate("final_norm", compute_, {slice, config_.hidden}, kind);
  return memory;
}

std::vector<BlockActivations> Transformer::allocate_deferred(Arena& arena, int64_t tokens, size_t number) const {
  const ModelPiece& piece = pieces_[number];
  std::vector<BlockActivations> deferred(static_cast<size_t>(piece.layers));
  for (int64_t i = 0; i < piece.layers; ++i) {
    activations(piece.first_layer + i).allocate(arena, Fate::recomputed, tokens, deferred[static_cast<size_t>(i)]);
  }
  return deferred;
}

std::vector<BlockActivations> Transformer::front(const std::vector<BlockActivations>& blocks, int64_t tokens,
                                                 size_t number) const {
  std::vector<BlockActivations> front = blocks;
  for (size_t i = 0; i < front.size(); ++i) {
    const ActivationTable& table = activations(pieces_[number].first_layer + static_cast<int64_t>(i));
    for (const ActivationRow& row : table.rows()) {
      TensorView& t = front[i].*row.tensor;
      if (!t.absent()) t = TensorView(t.data, t.dtype, {row.sliced ? tokens / shard_.size : tokens, t.cols()});
    }
  }
  return front;
}

MicroBatchMemory Transformer::front(const MicroBatchMemory& memory, int64_t tokens) const {
  MicroBatchMemory front = memory;
  front.blocks = this->front(memory.blocks, tokens, memory.piece);
  const int64_t slice = tokens / shard_.size;
  if (!pieces_[memory.piece].ends) return front;
  for (TensorView* t : {&front.final_input, &front.final_norm}) *t = TensorView(t->data, t->dtype, {slice, t->cols()});
  front.final_rstd = TensorView(front.final_rstd.data, front.final_rstd.dtype, {slice});
  return front;
}

void Transformer::defer(const std::vector<BlockActivations>& deferred, MicroBatchMemory& memory) const {
  for (size_t i = 0; i < deferred.size(); ++i) {
    activations(pieces_[memory.piece].first_layer + static_cast<int64_t>(i)).share(deferred[i], memory.blocks[i]);
  }
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
                             MicroBatchMemory& memory, const PieceLinks& links) const {
  const ModelPiece& piece = pieces_[memory.piece];
  TensorView residual = memory.blocks[0].input, delta;
  if (piece.embeds) {
    ArenaScope scope(ctx.arena);
    const TensorView addends = room_for_tokens(ctx, tensor_, residual);
    embedding_forward(
        ctx, {.tokens = tokens, .table = weights.get(parameters_.embedding()), .y = addends, .first = first_id()});
    scatter_tokens(ctx, tensor_, addends, residual, "embedding");
  } else {
    convert(ctx, {.x = links.input, .y = residual});
  }
  for (int64_t i = 0; i < piece.layers; ++i) {
    const int64_t l = piece.first_layer + i;
    ctx.arena.enter("forward", l);
    BlockActivations& a = memory.blocks[static_cast<size_t>(i)];
    weights.acquire(ctx, l);
    if (i + 1 < piece.layers) weights.gather(ctx, l + 1);
    block(l).forward(ctx, in, residual, delta, weights, a);
    weights.release(l);
    residual = a.mid;
    delta = a.delta;
  }
  ctx.arena.enter("forward");
  if (!piece.ends) {
    add(ctx, {.a = residual, .b = delta, .y = links.output});
    return;
  }
  rms_norm_forward(ctx, {.x = residual,
                         .delta = delta,
                         .weight = weights.get(parameters_.final_norm()),
                         .residual_out = memory.final_input,
                         .y = memory.final_norm,
                         .rstd = memory.final_rstd,
                         .epsilon = static_cast<float>(config_.norm_epsilon)});
}

void Transformer::forward(Context& ctx, const DeviceBatch& batch, WeightStore& weights, MicroBatchMemory& memory,
                          const PieceLinks& links) const {
  ctx.arena.enter("forward");
  ArenaScope scope(ctx.arena);
  if (!memory.transient) {  // rows that are not saved live in this scope
    const ModelPiece& piece = pieces_[memory.piece];
    BlockActivations shared;
    const ActivationTable& widest = recompute_layers_ > piece.first_layer ? recomputed_ : kept_;
    for (const Fate fate : {Fate::recomputed, Fate::scratch}) widest.allocate(ctx.arena, fate, batch.size(), shared);
    for (int64_t i = 0; i < piece.layers; ++i) {
      activations(piece.first_layer + i).share(shared, memory.blocks[static_cast<size_t>(i)]);
    }
  }
  run_blocks(ctx, inputs(batch), batch.tokens, weights, memory, links);
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
  // A tied head's gradient is complete with the embedding's share of it, unless another rank has that.
  const bool complete = parameters_.head() != parameters_.embedding() || !pieces_[memory.piece].embeds;
  if (gradients != nullptr && complete) gradients->notify(parameters_.head());
}

void Transformer::backward(Context& ctx, const DeviceBatch& batch, WeightStore& weights, GradientStore& gradients,
                           MicroBatchMemory& memory, const TensorView& gradient, const TensorView& input_gradient,
                           BackwardPass pass) const {
  ctx.arena.enter("backward");
  ArenaScope scope(ctx.arena);
  const ModelPiece& piece = pieces_[memory.piece];
  const BlockInputs in = inputs(batch);
  if (piece.ends) {
    const auto slot = gradients.get(parameters_.final_norm());
    rms_norm_backward(ctx, {.dy = gradient,
                            .x = memory.final_input,
                            .weight = weights.get(parameters_.final_norm()),
                            .rstd = memory.final_rstd,
                            .dx = gradient,
                            .dweight = slot.gradient,
                            .accumulate = slot.accumulate});
    gradients.notify(parameters_.final_norm());
  }
  TensorView of_output = gradient;
  for (int64_t i = piece.layers - 1; i >= 0; --i) {
    BlockActivations& a = memory.blocks[static_cast<size_t>(i)];
    // The gradient of a block's input takes the place of the input, or, where nobody reads it again, of the output's.
    const TensorView of_input = i == 0 && !piece.embeds        ? input_gradient
                                : pass == BackwardPass::inputs ? a.input
                                                               : of_output;
    const int64_t layer = piece.first_layer + i;
    ctx.arena.enter("backward", layer);
    weights.acquire(ctx, layer);
    if (i > 0) weights.gather(ctx, layer - 1);
    block_backward(ctx, in, weights, gradients, layer, a, of_output, of_input, pass);
    weights.release(layer);
    of_output = of_input;
  }
  if (!piece.embeds) return;
  ctx.arena.enter("backward");
  const TensorView dy = gather_tokens(ctx, tensor_, of_output, "embedding gradient");
  const auto embedding = gradients.get(parameters_.embedding());
  embedding_backward(ctx, {.tokens = batch.tokens,
                           .dy = dy,
                           .dtable = embedding.gradient,
                           .accumulate = embedding.accumulate,
                           .first = first_id()});
  gradients.notify(parameters_.embedding());
}

void Transformer::block_backward(Context& ctx, const BlockInputs& in, const WeightStore& weights,
                                 GradientStore& gradients, int64_t layer, BlockActivations& a,
                                 const TensorView& gradient, const TensorView& input_gradient,
                                 BackwardPass pass) const {
  ArenaScope scope(ctx.arena);
  const ActivationTable& table = activations(layer);
  const Block& one = block(layer);
  const bool whole = pass == BackwardPass::whole;
  const int64_t tokens = in.batch * in.length;
  if (whole) table.allocate(ctx.arena, Fate::recomputed, tokens, a, BlockPart::attention);
  const TensorView middle = whole ? gradient : a.mid;
  {
    ArenaScope mlp(ctx.arena);
    if (whole) table.allocate(ctx.arena, Fate::recomputed, tokens, a, BlockPart::mlp);
    if (table.fate(&BlockActivations::mid) == Fate::recomputed) table.allocate(ctx.arena, Fate::scratch, tokens, a);
    one.recompute(ctx, in, weights, table, a);
    one.mlp_backward(ctx, in, weights, gradients, a, gradient, middle, pass);
  }
  one.attention_backward(ctx, in, weights, gradients, a, middle, input_gradient, pass);
}

void Transformer::weight_backward(Context& ctx, const DeviceBatch& batch, GradientStore& gradients,
                                  const MicroBatchMemory& memory, const TensorView& gradient) const {
  const BlockInputs in = inputs(batch);
  const ModelPiece& piece = pieces_[memory.piece];
  for (int64_t i = piece.layers - 1; i >= 0; --i) {
    ctx.arena.enter("weight gradients", piece.first_layer + i);
    const auto at = static_cast<size_t>(i);
    const TensorView& of_output = i + 1 == piece.layers ? gradient : memory.blocks[at + 1].input;
    block(piece.first_layer + i).weight_backward(ctx, in, gradients, memory.blocks[at], of_output);
  }
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
  run_blocks(ctx, in, tokens, weights, memory, {});
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
