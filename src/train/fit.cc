#include "train/fit.h"

#include <algorithm>
#include <set>

#include "train/recipe_words.h"

namespace yoke {

namespace {

/// Tokens; no more than 4096 chunks, because a chunk for a few tokens saves next to nothing.
int64_t smallest_loss_chunk(const EngineOptions& options) { return std::max<int64_t>(64, options.tokens() / 4096); }

constexpr double kSameTime = 1.01;
/// For each rank of a pipeline: its bubble is 6 % of a step.
constexpr int64_t kManyMicroBatches = 16;

double time_of(const EnginePlan& plan) { return plan.step_seconds > 0 ? plan.step_seconds : plan.step_flops; }

/// The fastest of the candidates; of those within kSameTime of it the smallest.
std::optional<Fit> best_of(std::vector<Fit>& candidates) {
  if (candidates.empty()) return std::nullopt;
  double least = time_of(candidates.front().plan);
  for (const Fit& fit : candidates) least = std::min(least, time_of(fit.plan));
  Fit* best = nullptr;
  for (Fit& fit : candidates) {
    if (time_of(fit.plan) > kSameTime * least) continue;
    if (best == nullptr || fit.plan.peak_bytes < best->plan.peak_bytes) best = &fit;
  }
  return std::move(*best);
}

EngineOptions with_micro_batch(EngineOptions options, int64_t micro_batch) {
  if (options.loss_chunk > 0) {  // as many chunks as before
    const int64_t before = options.tokens(), after = before / options.micro_batch * micro_batch;
    const int64_t chunks = (before + options.loss_chunk - 1) / options.loss_chunk;
    options.loss_chunk = std::max<int64_t>((after + chunks - 1) / chunks, 1);
  }
  options.micro_batches = options.micro_batches * options.micro_batch / micro_batch;
  options.micro_batch = micro_batch;
  return options;
}

/// The micro-batches that a search may try, largest first.
std::vector<int64_t> micro_batches(const EngineOptions& options, const FitFreedom& freedom) {
  if (!freedom.micro_batch || options.consume_gradients) return {options.micro_batch};
  const int64_t global = options.micro_batch * options.micro_batches;
  std::set<int64_t, std::greater<>> divisors;
  for (int64_t d = 1; d * d <= global; ++d) {
    if (global % d == 0) divisors.insert({d, global / d});
  }
  std::vector<int64_t> legal;
  for (const int64_t d : divisors) {
    if (d <= (kLargestMicroBatchTokens - 1) / options.sequence_length) legal.push_back(d);
  }
  return legal;
}

}  // namespace

/// Weights and what every layer saves are too much already: a dry run would only take time to say so. Of the ranks of a
/// pipeline the one with most has at least the mean, and saves one micro-batch at least.
bool FitSearch::is_hopeless(const EngineOptions& options, Recompute setting) const {
  const ActivationTable table(config_, options.compute, setting);
  const auto ranks = static_cast<double>(options.mesh.pipeline) * options.mesh.tensor;
  const auto tokens = static_cast<double>(options.tokens());
  const double saved = static_cast<double>(config_.layers) * table.saved_bytes_per_token() / ranks;
  const double weights =
      static_cast<double>(size_of(options.compute)) * static_cast<double>(config_.parameters()) / ranks;
  return weights / (options.zero < 3 ? 1 : options.mesh.shards()) + tokens * saved > budget_;
}

std::optional<Fit> FitSearch::with_recompute(EngineOptions options, Recompute setting) const {
  if (is_hopeless(options, setting)) return std::nullopt;
  options.recompute = setting;
  options.recompute_layers = config_.layers;
  Fit fit{options, plan(options)};
  if (!fits(fit.plan)) return std::nullopt;
  // Fewer layers take more memory and less time.
  for (int64_t low = 0, high = config_.layers; high - low > 1;) {
    const int64_t middle = (low + high) / 2;
    options.recompute_layers = middle;
    EnginePlan tried = plan(options);
    if (fits(tried)) {
      fit = {options, std::move(tried)};
      high = middle;
    } else {
      low = middle;
    }
  }
  return fit;
}

std::optional<Fit> FitSearch::search(const EngineOptions& options, const FitFreedom& freedom) const {
  std::vector<Fit> found;
  for (const int64_t micro_batch : micro_batches(options, freedom)) {
    EngineOptions candidate = with_micro_batch(options, micro_batch);
    if (freedom.recompute) candidate.recompute = Recompute::none;
    if (!is_hopeless(candidate, freedom.recompute ? Recompute::none : Recompute::block)) {
      EnginePlan whole = plan(candidate);
      if (fits(whole)) {
        found.push_back({candidate, std::move(whole)});
        // A smaller micro-batch saves nothing that is needed, but makes a pipeline's bubble smaller.
        if (candidate.mesh.pipeline == 1 || candidate.micro_batches >= kManyMicroBatches * candidate.mesh.pipeline)
          break;
        continue;
      }
    }
    if (!freedom.recompute) continue;
    for (const Recompute setting : {Recompute::norms, Recompute::mlp, Recompute::attention, Recompute::block}) {
      if (auto fit = with_recompute(candidate, setting)) found.push_back(std::move(*fit));
    }
  }
  return best_of(found);
}

std::optional<Fit> FitSearch::fastest(const EngineOptions& options, const FitFreedom& freedom) const {
  auto fit = search(options, freedom);
  if (!freedom.loss_chunk) return fit;
  EngineOptions smaller = options;
  if (smaller.loss_chunk == 0) smaller.loss_chunk = default_loss_chunk(config_, options.compute, options.tokens());
  while (!fit && smaller.loss_chunk > smallest_loss_chunk(options)) {
    smaller.loss_chunk = std::max(smaller.loss_chunk / 2, smallest_loss_chunk(options));
    fit = search(smaller, freedom);
  }
  return fit;
}

Fit FitSearch::smallest(const EngineOptions& options, const FitFreedom& freedom) const {
  EngineOptions least = options;
  if (freedom.micro_batch && !options.consume_gradients) least = with_micro_batch(least, 1);
  if (freedom.loss_chunk && (least.loss_chunk == 0 || least.loss_chunk > smallest_loss_chunk(least))) {
    least.loss_chunk = smallest_loss_chunk(least);
  }
  Fit best{least, plan(least)};
  if (!freedom.recompute) return best;
  for (const Recompute setting : {Recompute::norms, Recompute::mlp, Recompute::attention, Recompute::block}) {
    least.recompute = setting;
    least.recompute_layers = -1;
    EnginePlan tried = plan(least);
    if (tried.peak_bytes < best.plan.peak_bytes) best = {least, std::move(tried)};
  }
  return best;
}

std::vector<EngineOptions> higher_stages(const EngineOptions& options) {
  std::vector<EngineOptions> all;
  const OptimizerKind kind = options.optimizer.kind;
  const bool whole_matrices = kind == OptimizerKind::muon || kind == OptimizerKind::adafactor;
  if (options.mesh.shards() == 1 || whole_matrices) return all;
  for (int zero = options.zero + 1; zero <= 3; ++zero) {
    all.push_back(options);
    all.back().zero = zero;
  }
  return all;
}

std::vector<EngineOptions> cheaper_formats(const EngineOptions& options) {
  std::vector<EngineOptions> all;
  EngineOptions o = options;
  const auto add = [&](bool changes, auto change) {
    if (!changes) return;
    change();
    all.push_back(o);
  };
  const OptimizerKind kind = o.optimizer.kind;
  const bool moments = kind == OptimizerKind::adamw || kind == OptimizerKind::muon ||
                       (kind == OptimizerKind::sgd && o.optimizer.momentum > 0);
  for (const MomentsFormat format : {MomentsFormat::bf16, MomentsFormat::int8}) {
    add(moments && o.optimizer.moments < format, [&] { o.optimizer.moments = format; });
  }
  const bool bf16 = o.compute == DType::bf16;
  add(bf16 && o.gradients == DType::f32, [&] { o.gradients = DType::bf16; });
  add(bf16 && o.fp32_master, [&] { o.fp32_master = false; });
  add(o.compute != DType::f16 && o.micro_batches == 1 && o.mesh.ranks() == 1 && !o.consume_gradients,
      [&] { o.consume_gradients = true; });
  return all;
}

std::string recipe_flags(const ModelConfig& config, const EngineOptions& from, const EngineOptions& to) {
  std::string flags;
  const auto add = [&](bool changes, const char* key, const auto& value) {
    if (changes) flags += fmt::format("{}--{} {}", flags.empty() ? "" : " ", key, value);
  };
  const auto layers = [&](const EngineOptions& o) {
    return o.recompute_layers < 0 ? config.layers : o.recompute_layers;
  };
  const auto chunks = [&](const EngineOptions& o) {
    return o.loss_chunk == 0 ? 0 : (o.tokens() + o.loss_chunk - 1) / o.loss_chunk;
  };
  add(to.micro_batch != from.micro_batch, "train.micro_batch", to.micro_batch);
  const bool recompute = to.recompute != from.recompute || layers(to) != layers(from);
  add(recompute, "memory.recompute", word_of<Recompute>(to.recompute, kRecomputeWords));
  const std::string count = layers(to) == config.layers ? "all" : std::to_string(layers(to));
  add(layers(to) != layers(from), "memory.recompute_layers", count);
  add(to.optimizer.moments != from.optimizer.moments, "memory.moments",
      word_of<MomentsFormat>(to.optimizer.moments, kMomentsWords));
  add(to.gradients != from.gradients, "memory.gradients", "bf16");
  add(to.fp32_master != from.fp32_master, "memory.master", "none");
  add(to.consume_gradients != from.consume_gradients, "memory.consume_gradients", "true");
  add(chunks(to) != chunks(from), "memory.loss_chunks", chunks(to));
  add(to.zero != from.zero, "parallel.zero", to.zero);
  return flags;
}

std::string fitting_settings(const FitSearch& search, const ModelConfig& config, const Fit& asked,
                             const std::string& command) {
  std::string text;
  std::set<std::string> offered;
  const auto offer = [&](const EngineOptions& options, const FitFreedom& freedom) {
    const auto fit = search.fastest(options, freedom);
    if (!fit) return false;
    const std::string flags = recipe_flags(config, asked.options, fit->options);
    if (flags.empty() || !offered.insert(flags).second) return false;
    text += fmt::format("\n  {:.2f} GiB, {:.2f} x the time:  {} {}", static_cast<double>(fit->plan.peak_bytes) / 0x1p30,
                        time_of(fit->plan) / time_of(asked.plan), command, flags);
    return true;
  };
  constexpr FitFreedom kAll{.recompute = true, .loss_chunk = true, .micro_batch = true};
  for (const FitFreedom& freedom : {FitFreedom{.recompute = true}, FitFreedom{.micro_batch = true}, kAll}) {
    offer(asked.options, freedom);
  }
  std::vector<EngineOptions> stages = higher_stages(asked.options);
  for (const EngineOptions& options : stages) {
    if (offer(options, {}) || offer(options, kAll)) break;
  }
  if (!text.empty()) return text;
  // What changes the arithmetic is offered only where nothing else fits.
  for (const EngineOptions& options : cheaper_formats(stages.empty() ? asked.options : stages.back())) {
    const FitFreedom freedom{.recompute = true, .loss_chunk = true, .micro_batch = !options.consume_gradients};
    if (offer(options, freedom)) break;
  }
  return text;
}

}  // namespace yoke
