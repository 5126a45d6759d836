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

std::string gib(double bytes) { return fmt::format("{:.2f} GiB", bytes / 0x1p30); }

/// What a run takes at least, by closed forms: weights, moments and gradients, saved activations, batches. The dry run
/// holds a step's batches itself, so what can't fit anyway must not get that far.
double least_bytes(const ModelConfig& model, const EngineOptions& options) {
  const double state = options.compute == DType::f32 ? 16 : 18;
  const double tokens = static_cast<double>(options.micro_batch) * static_cast<double>(options.sequence_length);
  const ActivationTable table(model, options.compute, options.recompute);
  const double saved = static_cast<double>(model.layers) * static_cast<double>(table.saved_bytes_per_token());
  return state * static_cast<double>(model.parameters()) + saved * tokens + loader_bytes(options);
}

double needed_bytes(const EnginePlan& plan, const EngineOptions& options) {
  return static_cast<double>(plan.peak_bytes) + loader_bytes(options);
}

/// Settings that need less, from the gentlest to the harshest, with what they take.
std::string smaller_settings(const RunSetup& run, double available) {
  const ModelConfig& model = run.config.model;
  std::string text;
  const auto offer = [&](const EngineOptions& options, const std::string& flags) {
    if (least_bytes(model, options) > available) return false;
    const double bytes = needed_bytes(plan_engine(run.device, model, options), options);
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
  const auto available = static_cast<double>(available_memory());
  const auto refuse = [&](const char* at_least, double needed) {
    throw UserError(ExitCode::does_not_fit,
                    fmt::format("The run needs {}{} of memory and this machine has {} free for it.{}", at_least,
                                gib(needed), gib(available), smaller_settings(run, available)));
  };
  const double least = least_bytes(run.config.model, run.engine);
  if (least > available) refuse("at least ", least);
  run.rates = measure_rates(run.device, run.engine.compute);
  run.plan = plan_engine(run.device, run.config.model, run.engine, run.rates);
  run.resident_before = resident_memory().now;
  const double needed = needed_bytes(run.plan, run.engine);
  if (needed > available) refuse("", needed);
}

}  // namespace

double loader_bytes(const EngineOptions& options) {
  return 3 * 4 * sizeof(int32_t) * static_cast<double>(options.micro_batch) *
         static_cast<double>(options.sequence_length) * static_cast<double>(options.micro_batches);
}

EngineOptions engine_options(const Recipe& recipe, const ModelConfig& model, DType compute) {
  const TrainRecipe& train = recipe.train;
  if (recipe.data.sequence_length > model.max_positions) {
    fail_usage("data.sequence_length is {}, the model's longest sequence (max_position_embeddings) is {}.",
               recipe.data.sequence_length, model.max_positions);
  }
  EngineOptions options{.compute = compute,
                        .micro_batch = train.micro_batch,
                        .sequence_length = recipe.data.sequence_length,
                        .micro_batches = train.global_batch / train.micro_batch,
                        .recompute = recompute_of(recipe.memory.recompute)};
  if (recipe.memory.loss_chunks) {
    const int64_t tokens = train.micro_batch * recipe.data.sequence_length;
    options.loss_chunk = (tokens + *recipe.memory.loss_chunks - 1) / *recipe.memory.loss_chunks;
  }
  return options;
}

RunSetup set_up(const LoadedRecipe& loaded) {
  check_supported(loaded.recipe);
  RunSetup run{.loaded = loaded};
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
  run.loader = {
      .micro_batch = train.micro_batch, .global_batch = train.global_batch, .seed = static_cast<uint64_t>(train.seed)};
  set_duration(run);
  plan_memory(run);
  return run;
}

}  // namespace yoke
