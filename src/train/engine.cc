#include "train/engine.h"

#include <algorithm>
#include <cmath>

#include "device/transfer.h"
#include "ops/adamw/adamw.h"
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
  if (options.loss_chunk == 0) options.loss_chunk = default_loss_chunk(config, options.compute, tokens);
  return options;
}

}  // namespace

Engine::Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options)
    : transformer_(config, options.compute, options.recompute, options.recompute_layers),
      options_(completed(config, options)),
      master_(ctx.arena, "master weight", transformer_.parameters(), DType::f32, MemoryKind::master),
      compute_weights_(options.compute == DType::f32 ? master_
                                                     : ParameterBuffers(ctx.arena, "weight", transformer_.parameters(),
                                                                        options.compute, MemoryKind::weights)),
      gradients_(ctx.arena, "gradient", transformer_.parameters(), DType::f32, MemoryKind::gradients),
      m_(ctx.arena, "first moment", transformer_.parameters(), DType::f32, MemoryKind::moments),
      v_(ctx.arena, "second moment", transformer_.parameters(), DType::f32, MemoryKind::moments),
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
  clear_moments(ctx);
}

void Engine::refresh_weights(Context& ctx) {
  if (options_.compute == DType::f32) return;
  for (size_t i = 0; i < master_.size(); ++i) convert(ctx, {.x = master_[i], .y = compute_weights_[i]});
}

void Engine::clear_moments(Context& ctx) {
  for (size_t i = 0; i < m_.size(); ++i) {
    fill(ctx, {.y = m_[i], .value = 0});
    fill(ctx, {.y = v_[i], .value = 0});
  }
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
  const TensorView gradient = ctx.arena.allocate(
      "residual gradient", options_.compute, {tokens, transformer_.config().hidden}, MemoryKind::activation_gradients);
  transformer_.forward(ctx, device, weight_store_, memory);
  const TensorView losses = reshape(columns(rows(token_loss_, index, 1), 0, tokens), {tokens});
  transformer_.loss(ctx, device, weight_store_, memory, {.chunk = options_.loss_chunk, .scale = scale}, losses,
                    &gradient_store_, gradient);
  transformer_.backward(ctx, device, weight_store_, gradient_store_, memory, gradient);
}

StepResult Engine::step(Context& ctx, std::span<const Batch> micro_batches, const UpdateOptions& update) {
  const auto count = static_cast<int64_t>(micro_batches.size());
  YOKE_ASSERT(count > 0 && count <= options_.micro_batches);
  StepResult result;
  for (const Batch& batch : micro_batches) result.supervised += batch.supervised;
  YOKE_ASSERT(result.supervised > 0, "a step without a supervised token");

  ctx.arena.enter_stage("step");
  gradient_store_.begin_step();
  const double scale = update.loss_scale / static_cast<double>(result.supervised);
  for (int64_t m = 0; m < count; ++m) {
    forward_backward(ctx, micro_batches[static_cast<size_t>(m)], m, static_cast<float>(scale));
  }
  ctx.arena.enter("update");
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const TensorView square = columns(reshape(row_squares_, {1, row_squares_.elements()}), static_cast<int64_t>(i), 1);
    sum_squares(ctx, {.x = gradients_[i], .y = square});
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
  if (!result.finite) return result;

  const double clip = update.clip_norm > 0 ? std::min(1.0, update.clip_norm / (result.gradient_norm + 1e-6)) : 1.0;
  update_rows(ctx, update, clip / update.loss_scale);
  return result;
}

void Engine::update_rows(Context& ctx, const UpdateOptions& update, double gradient_scale) {
  for (size_t i = 0; i < master_.size(); ++i) {
    const auto flat = [](const TensorView& t) { return reshape(t, {t.elements()}); };
    adamw(ctx, {.master = flat(master_[i]),
                .weight = options_.compute == DType::f32 ? TensorView{} : flat(compute_weights_[i]),
                .gradient = flat(gradients_[i]),
                .m = flat(m_[i]),
                .v = flat(v_[i]),
                .learning_rate = static_cast<float>(update.learning_rate),
                .beta1 = static_cast<float>(update.beta1),
                .beta2 = static_cast<float>(update.beta2),
                .epsilon = static_cast<float>(update.epsilon),
                .weight_decay = transformer_.parameters()[i].decays() ? static_cast<float>(update.weight_decay) : 0.0f,
                .gradient_scale = static_cast<float>(gradient_scale),
                .step = update.step});
  }
}

double Engine::evaluate(Context& ctx, const Batch& batch) {
  ctx.arena.enter_stage("evaluation");
  return sum_of_losses(ctx, transformer_, weight_store_, upload_batch(ctx, batch), options_.loss_chunk);
}

double Engine::norm_of(Context& ctx, const TensorView& view) {
  ArenaScope scope(ctx.arena);
  const TensorView square = ctx.arena.allocate("norm", DType::f64, {1});
  sum_squares(ctx, {.x = view, .y = square});
  double value = 0;
  download(ctx, square, std::span(&value, 1));
  return std::sqrt(value);
}

std::vector<std::string> Engine::dead_parameters(Context& ctx, const StepResult& result,
                                                 std::span<const Batch> batches) {
  // What has to be zero: the inputs of a zero matrix, and queries and keys where every token sees itself alone.
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
      const bool in_mlp = relative == block.post_norm || relative == block.gate_up;
      const bool out = relative == block.output || relative == block.down;
      const int next = in_mlp ? block.down : block.output;
      if (!out && norm_of(ctx, master_[first + static_cast<size_t>(next)]) == 0) continue;
    }
    dead.push_back(table[i].name);
  }
  return dead;
}

}  // namespace yoke
