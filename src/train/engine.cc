#include "train/engine.h"

#include <algorithm>
#include <cmath>

#include "device/transfer.h"
#include "ops/elementwise/elementwise.h"
#include "ops/sum_squares/sum_squares.h"

namespace yoke {

int64_t default_loss_chunk(const ModelConfig& config, DType compute, int64_t tokens) {
  constexpr int64_t kTarget = int64_t{32} << 20, kMultiple = 64;
  const int64_t row = config.vocabulary * static_cast<int64_t>(size_of(compute));
  return std::min(tokens, std::max(kTarget / row / kMultiple, int64_t{1}) * kMultiple);
}

namespace {

EngineOptions completed(const ModelConfig& config, EngineOptions options) {
  YOKE_ASSERT(options.micro_batch > 0 && options.sequence_length > 0 && options.micro_batches > 0);
  const int64_t tokens = checked_product(options.micro_batch, options.sequence_length, "micro_batch x sequence_length");
  YOKE_ASSERT(options.fp32_master || options.compute == DType::bf16);
  YOKE_ASSERT(options.gradients == DType::f32 || options.compute == DType::bf16);
  YOKE_ASSERT(!options.consume_gradients || (options.micro_batches == 1 && options.compute != DType::f16));
  if (options.loss_chunk == 0) options.loss_chunk = default_loss_chunk(config, options.compute, tokens);
  return options;
}

ParameterBuffers make_master(Arena& arena, const ParameterTable& table, const EngineOptions& options) {
  if (!options.fp32_master) return {arena, "weight", table, DType::bf16, MemoryKind::weights};
  return {arena, "master weight", table, DType::f32, MemoryKind::master};
}

/// What blocks compute with: the master weights themselves, or a rounded copy.
ParameterBuffers make_compute_weights(Arena& arena, const ParameterTable& table, const EngineOptions& options,
                                      const ParameterBuffers& master) {
  if (options.compute == DType::f32 || !options.fp32_master) return master;
  return {arena, "weight", table, options.compute, MemoryKind::weights};
}

/// All gradients; or, where they are consumed, one memory for whichever is there. The gradient of a tied embedding
/// lives from the loss to the end of backward, so it has its own.
ParameterBuffers make_gradients(Arena& arena, const ParameterTable& table, const EngineOptions& options) {
  const auto type_of = [&](const ParameterRow& row) { return row.decays() ? options.gradients : DType::f32; };
  const auto has_own = [&](size_t i) {
    return !options.consume_gradients || (i == table.embedding() && i == table.head());
  };
  int64_t shared_bytes = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto size = static_cast<int64_t>(size_of(type_of(table[i])));
    const int64_t bytes = checked_product(table[i].shape.elements(), size, "bytes of a gradient");
    if (!has_own(i)) shared_bytes = std::max(shared_bytes, bytes);
  }
  TensorView shared;
  if (shared_bytes > 0) shared = arena.allocate("gradient", DType::u8, {shared_bytes}, MemoryKind::gradients);
  std::vector<TensorView> views;
  for (size_t i = 0; i < table.size(); ++i) {
    const DType dtype = type_of(table[i]);
    views.push_back(has_own(i) ? arena.allocate("gradient", dtype, table[i].shape, MemoryKind::gradients)
                               : TensorView(shared.data, dtype, table[i].shape));
  }
  return ParameterBuffers(std::move(views));
}

}  // namespace

size_t state_bytes(const ModelConfig& config, const EngineOptions& options) {
  const ParameterTable table(config);
  Arena arena;
  make_compute_weights(arena, table, options, make_master(arena, table, options));
  make_gradients(arena, table, options);
  OptimizerState(arena, *make_optimizer(options.optimizer), table);
  return arena.used();
}

Engine::Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options)
    : transformer_(config, options.compute, options.recompute, options.recompute_layers),
      options_(completed(config, options)),
      optimizer_(make_optimizer(options.optimizer)),
      master_(make_master(ctx.arena, transformer_.parameters(), options)),
      compute_weights_(make_compute_weights(ctx.arena, transformer_.parameters(), options, master_)),
      gradients_(make_gradients(ctx.arena, transformer_.parameters(), options)),
      optimizer_state_(ctx.arena, *optimizer_, transformer_.parameters()),
      weight_store_(compute_weights_),
      gradient_store_(gradients_),
      batch_(ctx.arena, options.micro_batch, options.sequence_length),
      token_loss_(
          ctx.arena.allocate("token losses", DType::f32, {options.micro_batches, batch_.size()}, MemoryKind::loss)),
      row_squares_(ctx.arena.allocate("gradient squares", DType::f64,
                                      {static_cast<int64_t>(transformer_.parameters().size())},
                                      MemoryKind::gradients)) {
  transformer_.prepare_positions(ctx, options.sequence_length);
}

void Engine::initialise(Context& ctx, uint64_t seed) {
  initialise_parameters(ctx, transformer_.config(), transformer_.parameters(), master_, seed);
  refresh_weights(ctx);
  clear_optimizer(ctx);
}

void Engine::refresh_weights(Context& ctx) {
  if (!has_copies()) return;
  for (size_t i = 0; i < master_.size(); ++i) convert(ctx, {.x = master_[i], .y = compute_weights_[i]});
}

DeviceBatch Engine::upload_batch(Context& ctx, const Batch& batch) const {
  return batch_.upload(ctx, batch.rows, batch.length, batch.tokens, batch.targets, batch.positions, batch.key_begin);
}

void Engine::forward_backward(Context& ctx, const Batch& batch, int64_t index, float scale) {
  ctx.arena.enter("forward");
  ArenaScope scope(ctx.arena);
  const DeviceBatch device = upload_batch(ctx, batch);
  const int64_t tokens = device.size();
  MicroBatchMemory memory = transformer_.allocate(ctx.arena, tokens, false);
  transformer_.forward(ctx, device, weight_store_, memory);
  const TensorView losses = reshape(columns(rows(token_loss_, index, 1), 0, tokens), {tokens});
  transformer_.loss(ctx, device, weight_store_, memory, {.chunk = options_.loss_chunk, .scale = scale}, losses,
                    &gradient_store_, memory.final_norm);
  transformer_.backward(ctx, device, weight_store_, gradient_store_, memory, memory.final_norm);
}

StepResult Engine::step(Context& ctx, std::span<const Batch> micro_batches, const UpdateOptions& update) {
  const auto count = static_cast<int64_t>(micro_batches.size());
  YOKE_ASSERT(count > 0 && count <= options_.micro_batches);
  StepResult result;
  for (const Batch& batch : micro_batches) result.supervised += batch.supervised;
  YOKE_ASSERT(result.supervised > 0, "a step without a supervised token");

  ctx.arena.enter_stage("step");
  gradient_store_.begin_step();
  const bool consumed = options_.consume_gradients;
  if (consumed) gradient_store_.consume_with([&](size_t row) { consume(ctx, row, update); });
  const double scale = update.loss_scale / static_cast<double>(result.supervised);
  for (int64_t m = 0; m < count; ++m) {
    forward_backward(ctx, micro_batches[static_cast<size_t>(m)], m, static_cast<float>(scale));
  }
  ctx.arena.enter("update");
  gradient_store_.consume_with({});
  for (size_t i = 0; i < gradients_.size() && !consumed; ++i) {
    sum_squares(ctx, {.x = gradients_[i], .y = row_square(i)});
  }

  // The step's one wait for the device.
  std::vector<double> squares(gradients_.size());
  download(ctx, row_squares_, std::span(squares));
  const std::vector<float> losses = downloaded<float>(ctx, token_loss_);
  double square_sum = 0;
  for (const double square : squares) {
    square_sum += square;
    result.row_norms.push_back(std::sqrt(square) / update.loss_scale);
  }
  for (int64_t m = 0; m < count && !losses.empty(); ++m) {  // none on the dry device
    const auto& batch = micro_batches[static_cast<size_t>(m)];
    double sum = 0;
    for (int64_t t = 0; t < batch.rows * batch.length; ++t) {
      sum += static_cast<double>(losses[static_cast<size_t>(m * batch_.size() + t)]);
    }
    if (!std::isfinite(sum) && result.first_bad_micro_batch < 0) result.first_bad_micro_batch = m;
    result.loss_sum += sum;
  }
  result.gradient_norm = std::sqrt(square_sum) / update.loss_scale;
  result.finite = std::isfinite(result.gradient_norm) && std::isfinite(result.loss_sum);
  if (!result.finite || consumed) return result;

  const double clip = update.clip_norm > 0 ? std::min(1.0, update.clip_norm / (result.gradient_norm + 1e-6)) : 1.0;
  for (size_t i = 0; i < master_.size(); ++i) update_row(ctx, i, update, clip / update.loss_scale);
  return result;
}

TensorView Engine::row_square(size_t row) const {
  return columns(reshape(row_squares_, {1, row_squares_.elements()}), static_cast<int64_t>(row), 1);
}

void Engine::consume(Context& ctx, size_t row, const UpdateOptions& update) {
  const TensorView square = row_square(row);
  sum_squares(ctx, {.x = gradients_[row], .y = square});
  double squared_norm = 0;
  download(ctx, square, std::span(&squared_norm, 1));
  if (!std::isfinite(squared_norm)) return;
  const ParameterTable& table = transformer_.parameters();
  const double share = static_cast<double>(master_[row].elements()) / static_cast<double>(table.elements());
  const double most = update.clip_norm * std::sqrt(share), norm = std::sqrt(squared_norm) / update.loss_scale;
  const double clip = most > 0 ? std::min(1.0, most / (norm + 1e-6)) : 1.0;
  update_row(ctx, row, update, clip / update.loss_scale);
}

void Engine::update_row(Context& ctx, size_t row, const UpdateOptions& update, double gradient_scale) {
  optimizer_->update(ctx, {.parameter = transformer_.parameters()[row],
                           .weights = {master_[row], has_copies() ? compute_weights_[row] : TensorView{}},
                           .gradient = gradients_[row],
                           .state = optimizer_state_.of(row),
                           .options = update,
                           .gradient_scale = static_cast<float>(gradient_scale),
                           .random = {update.seed, update_stream(update.step, row)}});
}

double Engine::evaluate(Context& ctx, const Batch& batch) {
  ctx.arena.enter_stage("evaluation");
  return sum_of_losses(ctx, transformer_, weight_store_, upload_batch(ctx, batch), options_.loss_chunk);
}

std::vector<std::string> Engine::dead_parameters(const StepResult& result, std::span<const Batch> batches) const {
  // What has to be zero: all that acts through a zero matrix, and queries and keys where every token sees itself alone.
  // The weights have been updated since; that a matrix was zero shows in it getting a gradient when those before don't.
  bool context = false;
  for (const Batch& batch : batches) {
    for (const int32_t position : batch.positions) context = context || position > 0;
  }
  const ParameterTable& table = transformer_.parameters();
  const BlockRows block(transformer_.config());
  std::vector<std::string> dead;
  for (size_t i = 0; i < table.size(); ++i) {
    if (result.row_norms[i] > 0) continue;
    if (table[i].layer >= 0) {
      const size_t first = table.first_of_layer(table[i].layer);
      const int relative = static_cast<int>(i - first);
      const bool head_norm = relative == block.q_norm || relative == block.k_norm;
      if (head_norm && !context) continue;
      const int begin = relative > block.output ? block.post_norm : block.input_norm;
      const int end = relative > block.output ? block.down : block.output;
      const auto norms = result.row_norms.begin() + static_cast<std::ptrdiff_t>(first);
      const bool nothing_before = std::all_of(norms + begin, norms + end, [](double norm) { return norm == 0; });
      if (relative != end && nothing_before && norms[end] > 0) continue;
    }
    dead.push_back(table[i].name);
  }
  return dead;
}

}  // namespace yoke
