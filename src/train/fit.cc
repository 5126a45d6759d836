#include "train/fit.h"

#include <algorithm>
#include <set>

#include "train/recipe_words.h"

namespace yoke {

namespace {

/// Tokens; no more than 4096 chunks, because a chunk for a few tokens saves next to nothing.
int64_t smallest_loss_chunk(const EngineOptions& options) {
  return std::max<int64_t>(64, options.micro_batch * options.sequence_length / 4096);
}

constexpr double kSameTime = 1.01;

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
    const int64_t before = options.micro_batch * options.sequence_length, after = micro_batch * options.sequence_length;
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
    if (d <= kLargestMicroBatchTokens / options.sequence_length) legal.push_back(d);
  }
  return legal;
}

}  // namespace

/// Weights and what every layer saves are too much already: a dry run would only take time to say so.
bool FitSearch::is_hopeless(const EngineOptions& options, Recompute setting) const {
  const ActivationTable table(config_, options.compute, setting);
  const double tokens = static_cast<double>(options.micro_batch) * static_cast<double>(options.sequence_length);
  const double saved = static_cast<double>(config_.layers) * static_cast<double>(table.saved_bytes_per_token());
  const double weights = static_cast<double>(size_of(options.compute)) * static_cast<double>(config_.parameters());
  return weights + tokens * saved > budget_;
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
        break;  // a smaller micro-batch saves nothing that is needed
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
  if (fit || !freedom.loss_chunk) return fit;
  EngineOptions smaller = options;
  smaller.loss_chunk = smallest_loss_chunk(options);
  return search(smaller, freedom);
}

Fit FitSearch::smallest(const EngineOptions& options, const FitFreedom& freedom) const {
  EngineOptions least = options;
  if (freedom.micro_batch && !options.consume_gradients) least = with_micro_batch(least, 1);
  if (freedom.loss_chunk) least.loss_chunk = smallest_loss_chunk(least);
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

std::string recipe_flags(const ModelConfig& config, const EngineOptions& from, const EngineOptions& to) {
  std::vector<std::string> flags;
  if (to.micro_batch != from.micro_batch) flags.push_back(fmt::format("--train.micro_batch {}", to.micro_batch));
  const auto layers = [&](const EngineOptions& o) {
    return o.recompute_layers < 0 ? config.layers : o.recompute_layers;
  };
  if (to.recompute != from.recompute || layers(to) != layers(from)) {
    flags.push_back(fmt::format("--memory.recompute {}", word_of<Recompute>(to.recompute, kRecomputeWords)));
    if (layers(to) != config.layers) flags.push_back(fmt::format("--memory.recompute_layers {}", layers(to)));
  }
  if (to.optimizer.moments != from.optimizer.moments) {
    flags.push_back(fmt::format("--memory.moments {}", word_of<MomentsFormat>(to.optimizer.moments, kMomentsWords)));
  }
  if (to.loss_chunk != from.loss_chunk) {
    const int64_t tokens = to.micro_batch * to.sequence_length;
    flags.push_back(fmt::format("--memory.loss_chunks {}", (tokens + to.loss_chunk - 1) / to.loss_chunk));
  }
  return fmt::format("{}", fmt::join(flags, " "));
}

std::string fitting_settings(const FitSearch& search, const ModelConfig& config, const Fit& asked,
                             const std::string& command) {
  std::string text;
  std::set<std::string> offered;
  constexpr FitFreedom kAll{.recompute = true, .loss_chunk = true, .micro_batch = true};
  struct Way {
    FitFreedom freedom;
    MomentsFormat moments;
  };
  const MomentsFormat moments = asked.options.optimizer.moments;
  const Way ways[] = {{{.recompute = true}, moments},
                      {{.micro_batch = true}, moments},
                      {kAll, moments},
                      {kAll, MomentsFormat::bf16},
                      {kAll, MomentsFormat::int8}};
  for (const Way& way : ways) {
    // Formats that change what is computed come last, and only where nothing else fits.
    if (way.moments != moments && (!text.empty() || asked.options.optimizer.kind == OptimizerKind::adafactor)) continue;
    EngineOptions options = asked.options;
    options.optimizer.moments = way.moments;
    const auto fit = search.fastest(options, way.freedom);
    if (!fit) continue;
    const std::string flags = recipe_flags(config, asked.options, fit->options);
    if (flags.empty() || !offered.insert(flags).second) continue;
    text += fmt::format("\n  {:.2f} GiB, {:.2f} x the time:  {} {}", static_cast<double>(fit->plan.peak_bytes) / 0x1p30,
                        time_of(fit->plan) / time_of(asked.plan), command, flags);
  }
  return text;
}

}  // namespace yoke
