#include "train/run_setup.h"

#include <cmath>

#include "base/log.h"
#include "train/mesh_check.h"
#include "train/mesh_choice.h"
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
      recipe.train.global_batch % (pinned.micro_batch * options.mesh.data) != 0 ||
      pinned.micro_batch > kLargestMicroBatchTokens / (options.sequence_length + 1)) {
    pinned.micro_batch = 0;
  } else {
    options.micro_batch = pinned.micro_batch;
    options.micro_batches = recipe.train.global_batch / (pinned.micro_batch * options.mesh.data);
  }
  if (recipe.memory.loss_chunks || pinned.loss_chunk < 1 || pinned.loss_chunk > options.tokens()) {
    pinned.loss_chunk = 0;
  } else {
    options.loss_chunk = pinned.loss_chunk;
  }
  return pinned;
}

/// Where ranks measure different things, the least counts for all, so that all settle on the same.
void share_measurements(const RankSetup& ranks, MemoryBudget& budget, DeviceRates& rates) {
  if (ranks.host == nullptr) return;
  double least[] = {-budget.arena(), -rates.flops_per_second, -rates.bytes_per_second};
  ranks.host->all_reduce(least, Reduction::max);
  budget.capacity -= std::min(budget.capacity, static_cast<size_t>(budget.arena() + least[0]));
  rates = {.flops_per_second = -least[1], .bytes_per_second = -least[2]};
}

/// Settles what the recipe leaves open, or refuses the run.
void plan_memory(RunSetup& run, const PinnedSettings& pinned) {
  const FitSearch search(run.device, run.config.model, run.rates, run.budget.arena());
  Fit fit = fit_recipe(search, run.recipe(), run.engine, pinned);
  if (!search.fits(fit.plan)) refuse(run.loaded, search, run.config.model, fit, run.budget, run.resume);
  run.engine = fit.options;
  run.plan = run.ranks.mesh.ranks() == 1
                 ? std::move(fit.plan)
                 : plan_engine(run.device, run.config.model, run.engine, run.rates, run.ranks.rank);
  run.peak_of_setup = resident_memory().peak;
}

}  // namespace

EngineOptions engine_options(const Recipe& recipe, const ModelConfig& model, DType compute,
                             std::optional<MeshSizes> asked) {
  const MeshSizes mesh = asked.value_or(mesh_sizes(recipe.parallel));
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
  if (train.global_batch % (mesh.data * train.micro_batch.value_or(1)) != 0) {
    const int64_t each = mesh.data * train.micro_batch.value_or(1), below = train.global_batch / each * each;
    fail_usage("train.global_batch is {}; it must be a multiple of the {} data ranks{}, such as {}.",
               train.global_batch, mesh.data,
               train.micro_batch ? fmt::format(" x train.micro_batch {}", *train.micro_batch) : "",
               below == 0 ? fmt::format("{}", each) : fmt::format("{} or {}", below, below + each));
  }
  // Where nothing may accumulate, auto is the whole batch.
  const int64_t micro_batch =
      train.micro_batch.value_or(recipe.memory.consume_gradients ? train.global_batch / mesh.data : 1);
  EngineOptions options{.compute = compute,
                        .micro_batch = micro_batch,
                        .sequence_length = recipe.data.sequence_length,
                        .micro_batches = train.global_batch / (micro_batch * mesh.data),
                        .recompute = recipe.memory.recompute.value_or(Recompute::none),
                        .recompute_layers = recipe.memory.recompute_layers.value_or(-1),
                        .optimizer = optimizer_options(recipe),
                        .fp32_master = recipe.memory.master == MasterFormat::fp32,
                        .gradients = recipe.memory.gradients == GradientsFormat::bf16 ? DType::bf16 : DType::f32,
                        .evaluates = !(recipe.data.validation == Validation{}),
                        .consume_gradients = recipe.memory.consume_gradients,
                        .mesh = mesh,
                        .zero = static_cast<int>(recipe.parallel.zero),
                        .schedule = recipe.parallel.schedule,
                        .virtual_stages = static_cast<int>(recipe.parallel.virtual_stages)};
  if (recipe.memory.loss_chunks) {
    options.loss_chunk = (options.tokens() + *recipe.memory.loss_chunks - 1) / *recipe.memory.loss_chunks;
  }
  check_mesh(options, model);
  return options;
}

namespace {

/// Everything that comes from files. Where several ranks share a cache of tokens, the first one fills it.
void read_files(RunSetup& run) {
  const Recipe& recipe = run.recipe();
  run.tokenizer_path = recipe.model.tokenizer ? *recipe.model.tokenizer : recipe.model.path;
  run.tokenizer = open_tokenizer(recipe.model.tokenizer, recipe.model.path, run.config.model);
  const std::filesystem::path cache = std::filesystem::path(recipe.output).parent_path() / ".cache";
  run.data = open_datasets(data_options(recipe, cache, run.device.threads()), *run.tokenizer);
  set_duration(run);
}

}  // namespace

RunSetup set_up(const LoadedRecipe& loaded, const std::string& resume, const RankSetup& ranks) {
  const auto on_all = [&](const std::function<void()>& work) {
    if (ranks.host == nullptr) return work();
    together(*ranks.host, *ranks.names, work);
  };
  RunSetup run{.loaded = loaded, .resume = resume, .ranks = ranks};
  const Recipe& recipe = run.recipe();
  PinnedSettings pinned;
  on_all([&] {
    check_supported(recipe);
    run.config = read_hf_config(recipe.model.path);
    run.engine = engine_options(recipe, run.config.model, compute_type(recipe.train.precision), ranks.mesh);
    const auto threads = recipe.threads.value_or(ranks.threads.value_or(usable_cores()));
    run.device = Device::cpu(static_cast<int>(threads));
    if (ranks.rank == 0) read_files(run);
  });
  on_all([&] {
    if (ranks.rank != 0) read_files(run);
    pinned = saved_settings(run);
    pinned = pin(run.engine, recipe, pinned);
    run.budget = measure_budget(recipe, run.engine, run.device.threads(), ranks.local_ranks);
    run.rates = measure_rates(run.device, run.engine.compute, run.budget.arena());
  });
  share_measurements(ranks, run.budget, run.rates);
  on_all([&] { plan_memory(run, pinned); });
  run.rank_peaks = bytes_by_rank(ranks.host, run.plan.peak_bytes);
  run.loader.micro_batch = run.engine.micro_batch;
  run.loader.global_batch = recipe.train.global_batch;
  run.loader.rank = ranks.place().data;
  run.loader.ranks = ranks.mesh.data;
  run.loader.seed = static_cast<uint64_t>(recipe.train.seed);
  return run;
}

void require_memory(const RunSetup& run) {
  // What this process took since then was taken from what it had free: only the sum counts.
  MemoryBudget now = measure_budget(run.recipe(), run.engine, run.device.threads(), run.ranks.local_ranks);
  now.before = run.budget.before;
  if (now.outside() + run.plan.peak_bytes <= now.capacity) return;
  const FitSearch search(run.device, run.config.model, run.rates, now.arena());
  refuse(run.loaded, search, run.config.model, {run.engine, run.plan}, now, run.resume);
}

}  // namespace yoke
