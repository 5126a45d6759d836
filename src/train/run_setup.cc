#include "train/run_setup.h"

#include <cmath>

#include "base/log.h"

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

Recompute recompute_of(RecomputeChoice choice) {
  switch (choice) {
    case RecomputeChoice::automatic:
    case RecomputeChoice::none:
      return Recompute::none;
    case RecomputeChoice::norms:
      return Recompute::norms;
    case RecomputeChoice::mlp:
      return Recompute::mlp;
    case RecomputeChoice::attention:
      return Recompute::attention;
    case RecomputeChoice::block:
      return Recompute::block;
  }
  return Recompute::none;
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

std::string gib(size_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / 0x1p30); }

/// Settings that need less, from the gentlest to the harshest, with what they take.
std::string smaller_settings(const RunSetup& run, size_t available) {
  const auto peak = [&](const EngineOptions& options) {
    return plan_engine(run.device, run.config.model, options).peak_bytes;
  };
  std::string text;
  const auto offer = [&](const EngineOptions& options, const std::string& flags) {
    const size_t bytes = peak(options);
    if (bytes > available) return false;
    text = fmt::format(" This fits ({}): {}", gib(bytes), flags);
    return true;
  };
  EngineOptions options = run.engine;
  while (options.micro_batch > 1 && options.micro_batch % 2 == 0) {
    options.micro_batch /= 2;
    options.micro_batches *= 2;
    if (offer(options, fmt::format("--train.micro_batch {}", options.micro_batch))) return text;
  }
  options = run.engine;
  options.recompute = Recompute::block;
  while (true) {
    if (offer(options, fmt::format("--memory.recompute block --train.micro_batch {}", options.micro_batch))) {
      return text;
    }
    if (options.micro_batch == 1 || options.micro_batch % 2 != 0) break;
    options.micro_batch /= 2;
    options.micro_batches *= 2;
  }
  return " Neither smaller micro-batches nor recomputation make it fit: use a smaller model or a machine with more "
         "memory.";
}

void plan_memory(RunSetup& run) {
  run.rates = measure_rates(run.device, run.engine.compute);
  run.plan = plan_engine(run.device, run.config.model, run.engine, run.rates);
  run.resident_before = resident_memory().now;
  const size_t available = available_memory();
  if (run.plan.peak_bytes <= available) return;
  throw UserError(ExitCode::does_not_fit,
                  fmt::format("The run needs {} of memory and this machine has {} free for it.{}",
                              gib(run.plan.peak_bytes), gib(available), smaller_settings(run, available)));
}

}  // namespace

RunSetup set_up(const LoadedRecipe& loaded) {
  check_supported(loaded.recipe);
  RunSetup run{.loaded = loaded};
  const Recipe& recipe = run.recipe();
  const TrainRecipe& train = recipe.train;

  run.config = read_hf_config(recipe.model.path);
  const ModelConfig& model = run.config.model;
  if (recipe.data.sequence_length > model.max_positions) {
    fail_usage("data.sequence_length is {}, the model's longest sequence (max_position_embeddings) is {}.",
               recipe.data.sequence_length, model.max_positions);
  }
  run.tokenizer_path = recipe.model.tokenizer ? *recipe.model.tokenizer : recipe.model.path;
  run.tokenizer = open_tokenizer(recipe.model.tokenizer, recipe.model.path, model);

  const int threads = static_cast<int>(recipe.threads.value_or(usable_cores()));
  run.device = Device::cpu(threads);
  const std::filesystem::path cache = std::filesystem::path(recipe.output).parent_path() / ".cache";
  run.data = open_datasets(data_options(recipe, cache, threads), *run.tokenizer);
  run.loader = {
      .micro_batch = train.micro_batch, .global_batch = train.global_batch, .seed = static_cast<uint64_t>(train.seed)};

  run.engine = {.compute = compute_type(train.precision),
                .micro_batch = train.micro_batch,
                .sequence_length = recipe.data.sequence_length,
                .micro_batches = train.global_batch / train.micro_batch,
                .recompute = recompute_of(recipe.memory.recompute)};
  if (recipe.memory.loss_chunks) {
    const int64_t tokens = train.micro_batch * recipe.data.sequence_length;
    run.engine.loss_chunk = (tokens + *recipe.memory.loss_chunks - 1) / *recipe.memory.loss_chunks;
  }
  set_duration(run);
  plan_memory(run);
  return run;
}

}  // namespace yoke
