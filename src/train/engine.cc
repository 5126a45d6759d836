#include "train/engine.h"

#include <algorithm>
#include <cmath>

#include "device/transfer.h"
#include "ops/elementwise/elementwise.h"
#include "ops/sum_squares/sum_squares.h"
#include "train/context_batch.h"
#include "train/pipeline_stages.h"

namespace yoke {

int64_t default_loss_chunk(const ModelConfig& config, DType compute, int64_t tokens) {
  constexpr int64_t kTarget = int64_t{32} << 20, kMultiple = 64;
  const int64_t row = config.vocabulary * static_cast<int64_t>(size_of(compute));
  return std::min(tokens, std::max(kTarget / row / kMultiple, int64_t{1}) * kMultiple);
}

namespace {

/// What the ranks of the data axis have together; on the dry device, which knows no others, its own.
int64_t total_over_data(const Context& ctx, const Parallel& parallel, int64_t mine) {
  if (parallel.mesh().sizes().data == 1 || ctx.device.is_dry()) return mine;
  const MeshPlace& place = parallel.mesh().place();
  const bool counts = place.context == 0 && place.pipeline == 0 && place.tensor == 0;
  double total[] = {counts ? static_cast<double>(mine) : 0.0};
  parallel.host().all_reduce(total, Reduction::sum);
  return static_cast<int64_t>(total[0]);
}

EngineOptions completed(const ModelConfig& config, EngineOptions options) {
  YOKE_ASSERT(options.micro_batch > 0 && options.sequence_length > 0 && options.micro_batches > 0);
  checked_product(options.micro_batch, options.sequence_length, "micro_batch x sequence_length");
  YOKE_ASSERT(options.fp32_master || options.compute == DType::bf16);
  YOKE_ASSERT(options.gradients == DType::f32 || options.compute == DType::bf16);
  YOKE_ASSERT(!options.consume_gradients || (options.micro_batches == 1 && options.compute != DType::f16));
  if (options.loss_chunk == 0) options.loss_chunk = default_loss_chunk(config, options.compute, options.tokens());
  return options;
}

DeviceBatch make_batch(Arena& arena, const EngineOptions& options) {
  const Batch whole{.rows = options.micro_batch, .length = options.sequence_length};
  const Batch part = context_part(whole, 0, options.mesh.context);
  return {arena, part.rows, part.length};
}

/// What a rank has of the model.
ModelPart model_part(const ModelConfig& config, const EngineOptions& options, const Mesh& mesh) {
  const MeshSizes& sizes = mesh.sizes();
  ModelPart part{.tensor = {mesh.place().tensor, sizes.tensor}};
  if (sizes.pipeline == 1) return part;
  part.pieces =
      pipeline_pieces(config, options.sequence_length, sizes.pipeline, options.virtual_stages, mesh.place().pipeline);
  return part;
}

}  // namespace

size_t state_bytes(const ModelConfig& config, const EngineOptions& options, int rank) {
  const Parallel parallel = Parallel::dry(options.mesh, rank);
  const ParameterTable table(config, model_part(config, options, parallel.mesh()));
  Arena arena;
  const ParameterState state(arena, table, options, *make_optimizer(options.optimizer), parallel);
  return arena.used();
}

Engine::Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options, const Parallel& parallel)
    : Engine(ctx, config, options, nullptr, &parallel) {}

Engine::Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options)
    : Engine(ctx, config, options, std::make_unique<const Parallel>(Parallel::self()), nullptr) {}

Engine::Engine(Context& ctx, const ModelConfig& config, const EngineOptions& options,
               std::unique_ptr<const Parallel> own, const Parallel* parallel)
    : own_parallel_(std::move(own)),
      parallel_(parallel == nullptr ? *own_parallel_ : *parallel),
      transformer_(config, options.compute, options.recompute, options.recompute_layers,
                   model_part(config, options, parallel_.mesh()), &parallel_),
      options_(completed(config, options)),
      optimizer_(make_optimizer(options.optimizer)),
      state_(ctx.arena, transformer_.parameters(), options, *optimizer_, parallel_),
      batch_(make_batch(ctx.arena, options)),
      token_loss_(
          ctx.arena.allocate("token losses", DType::f32, {options.micro_batches, batch_.size()}, MemoryKind::loss)),
      row_squares_(ctx.arena.allocate("gradient squares", DType::f64,
                                      {static_cast<int64_t>(transformer_.parameters().size())},
                                      MemoryKind::gradients)) {
  YOKE_ASSERT(parallel_.mesh().sizes() == options.mesh);
  YOKE_ASSERT(options.mesh.pipeline == 1 || !options.consume_gradients);
  if (options.mesh.pipeline > 1) {
    pipeline_.emplace(options.schedule, options.pipeline(), parallel_.mesh().place().pipeline);
  }
  transformer_.prepare_positions(ctx, options.sequence_length);
}

void Engine::initialise(Context& ctx, uint64_t seed) {
  initialise_parameters(
      ctx, transformer_.config(), transformer_.parameters(), master(), [&](size_t row) { return state_.owned(row); },
      seed);
  refresh_weights(ctx);
  clear_optimizer(ctx);
}

void Engine::refresh_weights(Context& ctx) {
  for (size_t i = 0; i < master().size(); ++i) {
    if (!state_.copies()[i].absent()) convert(ctx, {.x = master()[i], .y = state_.copies()[i]});
  }
  state_.weights_changed(ctx);
}

void Engine::forward_backward(Context& ctx, const Batch& batch, int64_t index, float scale) {
  ctx.arena.enter("forward");
  ArenaScope scope(ctx.arena);
  const DeviceBatch device = upload_batch(ctx, batch, batch_);
  const int64_t tokens = device.size();
  MicroBatchMemory memory = transformer_.allocate(ctx.arena, tokens, false);
  WeightStore& weights = state_.weights();
  GradientStore& gradients = state_.gradient_store();
  transformer_.forward(ctx, device, weights, memory);
  const TensorView losses = reshape(columns(rows(token_loss_, index, 1), 0, tokens), {tokens});
  transformer_.loss(ctx, device, weights, memory, {.chunk = options_.loss_chunk, .scale = scale}, losses, &gradients,
                    memory.final_norm);
  transformer_.backward(ctx, device, weights, gradients, memory, memory.final_norm);
}

void Engine::forward_backward_all(Context& ctx, std::span<const Batch> micro_batches, float scale) {
  const Communicator& context = parallel_[Group::context];
  std::vector<Batch> parts;
  if (!context.alone()) {
    for (const Batch& whole : micro_batches) parts.push_back(context_part(whole, context.rank(), context.size()));
    micro_batches = parts;
  }
  if (pipeline_) {
    ArenaScope scope(ctx.arena);
    PipelineStep(ctx, pipeline_members(), *pipeline_, state_.gradient_store(), token_loss_, scale).run(micro_batches);
    return;
  }
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    forward_backward(ctx, micro_batches[m], static_cast<int64_t>(m), scale);
  }
}

PipelineMembers Engine::pipeline_members() const {
  return {transformer_, state_.weights(),     parallel_[Group::pipeline],
          batch_,       options_.mesh.tensor, options_.loss_chunk};
}

void Engine::sum_tied_gradients(Context& ctx) {
  const ParameterTable& table = transformer_.parameters();
  Communicator& ends = parallel_[Group::ends];
  if (ends.alone() || !transformer_.config().tied_embeddings || table.embedding() == ParameterTable::kAbsent) return;
  const TensorView& gradient = state_.gradients()[table.embedding()];
  if (!gradient.absent()) ends.run(ctx, {.input = gradient, .what = "gradients of tied embeddings"});
}

void Engine::sum_partial_gradients(Context& ctx) {
  Communicator& tensor = parallel_[Group::tensor];
  if (tensor.alone()) return;
  Pending last;
  for (size_t i = 0; i < transformer_.parameters().size(); ++i) {
    const ParameterRow& row = transformer_.parameters()[i];
    const TensorView& gradient = state_.gradients()[i];
    if (!row.partial_over_tensor || gradient.absent()) continue;
    last = tensor.start(ctx, {.input = gradient, .what = "gradients over the tensor axis", .layer = row.layer});
  }
  tensor.wait(ctx, last);
}

StepResult Engine::step(Context& ctx, std::span<const Batch> micro_batches, const UpdateOptions& update) {
  const auto count = static_cast<int64_t>(micro_batches.size());
  YOKE_ASSERT(count > 0 && count <= options_.micro_batches);
  StepResult result;
  for (const Batch& batch : micro_batches) result.supervised += batch.supervised;
  result.supervised = total_over_data(ctx, parallel_, result.supervised);
  YOKE_ASSERT(result.supervised > 0, "a step without a supervised token");

  ctx.arena.enter_stage("step");
  GradientStore& gradients = state_.gradient_store();
  gradients.begin_step(ctx, count);
  state_.weights().begin(ctx);
  const bool consumed = options_.consume_gradients;
  if (consumed) gradients.consume_with([&](size_t row) { consume(ctx, row, update); });
  const double scale = update.loss_scale / static_cast<double>(result.supervised);
  forward_backward_all(ctx, micro_batches, static_cast<float>(scale));
  ctx.arena.enter("update");
  gradients.consume_with({});
  gradients.finish_step();
  sum_tied_gradients(ctx);
  sum_partial_gradients(ctx);

  double square_sum = 0;
  for (const double square : gradient_squares(ctx)) {
    if (!transformer_.parameters()[result.row_norms.size()].copy) square_sum += square;
    result.row_norms.push_back(std::sqrt(square) / update.loss_scale);
  }
  sum_losses(ctx, micro_batches, square_sum, &result);
  result.gradient_norm /= update.loss_scale;
  result.finite = std::isfinite(result.gradient_norm) && std::isfinite(result.loss_sum);
  if (!result.finite || consumed) return result;

  const double clip = update.clip_norm > 0 ? std::min(1.0, update.clip_norm / (result.gradient_norm + 1e-6)) : 1.0;
  for (size_t i = 0; i < master().size(); ++i) {
    if (!master()[i].absent()) update_row(ctx, i, update, clip / update.loss_scale);
  }
  state_.weights_changed(ctx);
  return result;
}

std::vector<double> Engine::gradient_squares(Context& ctx) {
  const ParameterBuffers& gradients = state_.gradients();
  Communicator& tensor = parallel_[Group::tensor];
  for (size_t i = 0; i < gradients.size() && !options_.consume_gradients; ++i) {
    // What every tensor-parallel rank has, the first one counts.
    const bool elsewhere = tensor.rank() > 0 && transformer_.parameters()[i].split == ParameterRow::Split::none;
    if (gradients[i].absent() || elsewhere) {
      const TensorView square = row_square(i);
      fill(ctx, {.y = {square.data, DType::u8, {static_cast<int64_t>(square.bytes())}}, .value = 0});
    } else {
      sum_squares(ctx, {.x = gradients[i], .y = row_square(i)});
    }
  }
  if (state_.shards() > 1) parallel_[Group::shard].run(ctx, {.input = row_squares_, .what = "squares of gradients"});
  if (!tensor.alone()) tensor.run(ctx, {.input = row_squares_, .what = "squares of gradients"});
  // The step's one wait for the device.
  std::vector<double> squares(gradients.size());
  download(ctx, row_squares_, std::span(squares));
  return squares;
}

/// Fills in loss_sum, first_bad_micro_batch and, not unscaled, gradient_norm.
void Engine::sum_losses(Context& ctx, std::span<const Batch> micro_batches, double square_sum, StepResult* result) {
  const auto count = static_cast<int64_t>(micro_batches.size());
  std::vector<float> losses = downloaded<float>(ctx, token_loss_);
  if (!transformer_.pieces().back().ends) losses.clear();   // the last stage has them
  int64_t bad = 0;                                          // micro-batches from the first bad one on
  for (int64_t m = 0; m < count && !losses.empty(); ++m) {  // none on the dry device
    const auto& batch = micro_batches[static_cast<size_t>(m)];
    double sum = 0;
    for (int64_t t = 0; t < batch.rows * batch.length / options_.mesh.context; ++t) {
      sum += static_cast<double>(losses[static_cast<size_t>(m * batch_.size() + t)]);
    }
    if (!std::isfinite(sum) && bad == 0) bad = count - m;
    result->loss_sum += sum;
  }
  if (parallel_.mesh().sizes().ranks() > 1) {
    const MeshPlace& place = parallel_.mesh().place();
    // What several ranks know counts once.
    double sums[] = {place.tensor == 0 ? result->loss_sum : 0.0,
                     place.tensor == 0 && place.replica(options_.mesh) == 0 ? square_sum : 0.0};
    parallel_.host().all_reduce(sums, Reduction::sum);
    result->loss_sum = sums[0];
    square_sum = sums[1];
    double worst[] = {static_cast<double>(bad)};
    parallel_.host().all_reduce(worst, Reduction::max);
    bad = static_cast<int64_t>(worst[0]);
  }
  if (bad > 0) result->first_bad_micro_batch = count - bad;
  result->gradient_norm = std::sqrt(square_sum);
}

TensorView Engine::row_square(size_t row) const {
  return columns(reshape(row_squares_, {1, row_squares_.elements()}), static_cast<int64_t>(row), 1);
}

void Engine::consume(Context& ctx, size_t row, const UpdateOptions& update) {
  const TensorView square = row_square(row);
  sum_squares(ctx, {.x = state_.gradients()[row], .y = square});
  double squared_norm = 0;
  download(ctx, square, std::span(&squared_norm, 1));
  if (!std::isfinite(squared_norm)) return;
  const ParameterTable& table = transformer_.parameters();
  const double share = static_cast<double>(master()[row].elements()) / static_cast<double>(table.elements());
  const double most = update.clip_norm * std::sqrt(share), norm = std::sqrt(squared_norm) / update.loss_scale;
  const double clip = most > 0 ? std::min(1.0, most / (norm + 1e-6)) : 1.0;
  update_row(ctx, row, update, clip / update.loss_scale);
}

void Engine::update_row(Context& ctx, size_t row, const UpdateOptions& update, double gradient_scale) {
  const ParameterRow& parameter = transformer_.parameters()[row];
  optimizer_->update(ctx, {.parameter = parameter,
                           .weights = {master()[row], state_.copies()[row]},
                           .gradient = state_.gradients()[row],
                           .state = optimizer_state().of(row),
                           .options = update,
                           .gradient_scale = static_cast<float>(gradient_scale),
                           .random = {update.seed, update_stream(update.step, parameter.id),
                                      static_cast<uint64_t>(state_.owned(row).begin)}});
}

double Engine::sum_over_context(Context& ctx, double mine) {
  Communicator& context = parallel_[Group::context];
  if (context.alone()) return mine;
  ArenaScope scope(ctx.arena);
  const TensorView total = ctx.arena.allocate("evaluation loss", DType::f64, {1}, MemoryKind::loss);
  upload(ctx, &mine, sizeof mine, total);
  context.run(ctx, {.input = total, .what = "evaluation loss"});
  double sum = 0;
  download(ctx, total, std::span(&sum, 1));
  return sum;
}

double Engine::evaluate(Context& ctx, const Batch& batch) {
  ctx.arena.enter_stage("evaluation");
  state_.weights().begin(ctx);
  const Communicator& context = parallel_[Group::context];
  const Batch part = context_part(batch, context.rank(), context.size());
  const double sum = pipeline_ ? pipeline_evaluate(ctx, pipeline_members(), pipeline_->shape(), part)
                               : sum_of_losses(ctx, transformer_, state_.weights(), upload_batch(ctx, part, batch_),
                                               options_.loss_chunk);
  return sum_over_context(ctx, sum);
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
