#include "train/run_setup.h"

#include <cmath>

#include "base/log.h"
#include "train/training_checkpoint.h"

namespace yoke {

DType compute_type(const std::optional<Precision>& precision) {
  switch (precision.value_or(cpu_has_bf16() ? Precision::bf16 : Precision::fp32)) {
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16:
      return DType::f16;
    case Precision::fp32:
      return DType::f32;
  }
  return DType::f32;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::optional<std::string>& asked, const std::filesystem::path& model,
                                          const ModelConfig& config) {
  const std::filesystem::path path = asked ? std::filesystem::path(*asked) : model;
  auto tokenizer = load_tokenizer(path);
  if (tokenizer->vocabulary_size() > config.vocabulary) {
    fail_usage(
        "{}: the tokenizer has {} ids, the model's vocab_size is {}. Use the tokenizer that belongs to the "
        "model, or a model whose vocab_size is at least {}.",
        path.string(), tokenizer->vocabulary_size(), config.vocabulary, tokenizer->vocabulary_size());
  }
  return tokenizer;
}

namespace {

OptimizerOptions optimizer_options(const Recipe& recipe) {
  const OptimizerKind kind = recipe.train.optimizer;
  return {.kind = kind,
          .moments = recipe.memory.moments,
          .momentum = recipe.train.momentum.value_or(kind == OptimizerKind::muon ? 0.95 : 0.9)};
}

/// Optimizer steps, and the rows at which the loader ends (0: never).
void set_duration(RunSetup& run) {
  const TrainRecipe& train = run.recipe().train;
  const int64_t rows = run.data.train->rows();
  run.loader.limit = 0;
  if (train.steps) {
    run.steps = *train.steps;
  } else if (train.epochs) {
    const double total = std::ceil(*train.epochs * static_cast<double>(rows));
    if (!(total < 0x1p62)) fail_usage("train.epochs: {} epochs of {} rows are too many.", *train.epochs, rows);
    run.loader.limit = static_cast<int64_t>(total);
    run.steps = (run.loader.limit + train.global_batch - 1) / train.global_batch;
  } else {
    const int64_t per_step = checked_product(train.global_batch, run.engine.sequence_length, "tokens of a step");
    run.steps = (*train.tokens + per_step - 1) / per_step;
  }
  check_schedule(train, run.steps);
}

/// A resumed run's settings, where the recipe leaves them open and they are still legal.
PinnedSettings pin(EngineOptions& options, const Recipe& recipe, PinnedSettings pinned) {
  if (recipe.train.micro_batch || recipe.memory.consume_gradients || pinned.micro_batch < 1 ||
      recipe.train.global_batch % pinned.micro_batch != 0 ||
      pinned.micro_batch > kLargestMicroBatchTokens / (options.sequence_length + 1)) {
    pinned.micro_batch = 0;
  } else {
    options.micro_batch = pinned.micro_batch;
    options.micro_batches = recipe.train.global_batch / pinned.micro_batch;
  }
  const int64_t tokens = options.micro_batch * options.sequence_length;
  if (recipe.memory.loss_chunks || pinned.loss_chunk < 1 || pinned.loss_chunk > tokens) {
    pinned.loss_chunk = 0;
  } else {
    options.loss_chunk = pinned.loss_chunk;
  }
  return pinned;
}

/// Settles what the recipe leaves open, or refuses the run.
void plan_memory(RunSetup& run, PinnedSettings pinned) {
  pinned = pin(run.engine, run.recipe(), pinned);
  run.budget = measure_budget(run.recipe(), run.engine);
  run.rates = measure_rates(run.device, run.engine.compute, run.budget.arena());
  const FitSearch search(run.device, run.config.model, run.rates, run.budget.arena());
  Fit fit = fit_recipe(search, run.recipe(), run.engine, pinned);
  if (!search.fits(fit.plan)) refuse(run.loaded, search, run.config.model, fit, run.budget, run.resume);
  run.engine = fit.options;
  run.plan = std::move(fit.plan);
  run.peak_of_setup = resident_memory().peak;
}

}  // namespace

EngineOptions engine_options(const Recipe& recipe, const ModelConfig& model, DType compute) {
  const TrainRecipe& train = recipe.train;
  if (recipe.data.sequence_length > model.max_positions) {
    fail_usage("data.sequence_length is {}, the model's longest sequence (max_position_embeddings) is {}.",
               recipe.data.sequence_length, model.max_positions);
  }
  if (recipe.memory.consume_gradients && compute == DType::f16) {
    fail_usage(
        "memory.consume_gradients is true and the run would compute in fp16, which has to be able to skip steps; "
        "use train.precision fp32.");
  }
  if (recipe.memory.recompute_layers.value_or(0) > model.layers) {
    fail_usage("memory.recompute_layers is {}; the model has {} layers.", *recipe.memory.recompute_layers,
               model.layers);
  }
  // Where nothing may accumulate, auto is the whole batch.
  const int64_t micro_batch = train.micro_batch.value_or(recipe.memory.consume_gradients ? train.global_batch : 1);
  EngineOptions options{.compute = compute,
                        .micro_batch = micro_batch,
                        .sequence_length = recipe.data.sequence_length,
                        .micro_batches = train.global_batch / micro_batch,
                        .recompute = recipe.memory.recompute.value_or(Recompute::none),
                        .recompute_layers = recipe.memory.recompute_layers.value_or(-1),
                        .optimizer = optimizer_options(recipe),
                        .fp32_master = recipe.memory.master == MasterFormat::fp32,
                        .gradients = recipe.memory.gradients == GradientsFormat::bf16 ? DType::bf16 : DType::f32,
                        .evaluates = !(recipe.data.validation == Validation{}),
                        .consume_gradients = recipe.memory.consume_gradients};
  if (recipe.memory.loss_chunks) {
    const int64_t tokens = micro_batch * recipe.data.sequence_length;
    options.loss_chunk = (tokens + *recipe.memory.loss_chunks - 1) / *recipe.memory.loss_chunks;
  }
  return options;
}

RunSetup set_up(const LoadedRecipe& loaded, const std::string& resume) {
  check_supported(loaded.recipe);
  RunSetup run{.loaded = loaded, .resume = resume};
  const Recipe& recipe = run.recipe();
  const TrainRecipe& train = recipe.train;

  run.config = read_hf_config(recipe.model.path);
  const ModelConfig& model = run.config.model;
  run.engine = engine_options(recipe, model, compute_type(train.precision));
  run.tokenizer_path = recipe.model.tokenizer ? *recipe.model.tokenizer : recipe.model.path;
  run.tokenizer = open_tokenizer(recipe.model.tokenizer, recipe.model.path, model);

  const int threads = static_cast<int>(recipe.threads.value_or(usable_cores()));
  run.device = Device::cpu(threads);
  const std::filesystem::path cache = std::filesystem::path(recipe.output).parent_path() / ".cache";
  run.data = open_datasets(data_options(recipe, cache, threads), *run.tokenizer);
  set_duration(run);
  plan_memory(run, saved_settings(run));
  run.loader.micro_batch = run.engine.micro_batch;
  run.loader.global_batch = train.global_batch;
  run.loader.seed = static_cast<uint64_t>(train.seed);
  return run;
}

void require_memory(const RunSetup& run) {
  // What this process took since then was taken from what it had free: only the sum counts.
  MemoryBudget now = measure_budget(run.recipe(), run.engine);
  now.before = run.budget.before;
  if (now.outside() + run.plan.peak_bytes <= now.capacity) return;
  const FitSearch search(run.device, run.config.model, run.rates, now.arena());
  refuse(run.loaded, search, run.config.model, {run.engine, run.plan}, now, run.resume);
}

}  // namespace yoke
