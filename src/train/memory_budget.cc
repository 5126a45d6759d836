#include "train/memory_budget.h"

#include <algorithm>

#include "base/error.h"
#include "device/device.h"
#include "train/command_text.h"

namespace yoke {

namespace {

/// Bytes of a step's batches, which the loader holds three times.
size_t loader_bytes(const EngineOptions& options) {
  int64_t bytes = 3 * 4 * sizeof(int32_t);
  for (const int64_t factor : {options.micro_batch, options.sequence_length, options.micro_batches}) {
    bytes = checked_product(bytes, factor, "bytes of the batches of a step (train.global_batch)");
  }
  return static_cast<size_t>(bytes);
}

FitFreedom freedom_of(const Recipe& recipe, const PinnedSettings& pinned) {
  return {.recompute = !recipe.memory.recompute,
          .loss_chunk = !recipe.memory.loss_chunks && pinned.loss_chunk == 0,
          .micro_batch = !recipe.train.micro_batch && pinned.micro_batch == 0};
}

/// " on rank 3 (pipeline 1)": where it doesn't fit, of several ranks.
std::string rank_text(const Fit& fit) {
  if (fit.options.mesh.ranks() == 1) return "";
  return fmt::format(" on rank {} ({})", fit.plan.rank, Mesh(fit.options.mesh, fit.plan.rank).place_text());
}

std::string gib(size_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / 0x1p30); }

}  // namespace

MemoryBudget measure_budget(const Recipe& recipe, const EngineOptions& options, int threads, int local_ranks) {
  MemoryBudget budget{.before = resident_memory().now,
                      .loader = loader_bytes(options),
                      .runtime = (size_t{20} << 20) + static_cast<size_t>(threads) * (size_t{2} << 20)};
  budget.capacity = budget.before + available_memory() / static_cast<size_t>(local_ranks);
  if (recipe.memory.limit && static_cast<size_t>(*recipe.memory.limit) < budget.capacity) {
    budget.capacity = static_cast<size_t>(*recipe.memory.limit);
    budget.limited = true;
  }
  return budget;
}

Fit fit_recipe(const FitSearch& search, const Recipe& recipe, const EngineOptions& asked,
               const PinnedSettings& pinned) {
  const FitFreedom freedom = freedom_of(recipe, pinned);
  if (auto fit = search.fastest(asked, freedom)) return std::move(*fit);
  return search.smallest(asked, freedom);
}

void refuse(const LoadedRecipe& loaded, const FitSearch& search, const ModelConfig& config, const Fit& fit,
            const MemoryBudget& budget, const std::string& resume) {
  const size_t needed = budget.outside() + fit.plan.peak_bytes;
  std::string text =
      fmt::format("The run needs {} of memory{} ({} for the arena, {} for program, data and batches), and {} {}.",
                  gib(needed), rank_text(fit), gib(fit.plan.peak_bytes), gib(budget.outside()),
                  budget.limited ? "memory.limit is" : "this machine has free for it", gib(budget.capacity));
  std::string command =
      command_with("yoke train " + shell_word(loaded.name), loaded.overrides, loaded, fit.options.compute);
  if (resume != "none") command += " --resume " + shell_word(resume);
  constexpr double kDrift = 0x1p23;  // what another start of the program may take more than this one
  const std::string fitting = fitting_settings(search.tighter(kDrift), config, fit, command);
  if (!fitting.empty()) {
    text += " These settings fit:" + fitting;
  } else {
    const std::vector<EngineOptions> stages = higher_stages(fit.options);
    const EngineOptions& sharded = stages.empty() ? fit.options : stages.back();
    const std::vector<EngineOptions> cheaper = cheaper_formats(sharded);
    const Fit least = search.smallest(cheaper.empty() ? sharded : cheaper.back(),
                                      {.recompute = true, .loss_chunk = true, .micro_batch = true});
    const std::string flags = recipe_flags(config, fit.options, least.options);
    text += fmt::format(
        " No setting makes it fit: the smallest run{} needs {}. Use a shorter data.sequence_length, a smaller model{} "
        "or a machine with more memory.",
        flags.empty() ? "" : fmt::format(" ({})", flags), gib(budget.outside() + least.plan.peak_bytes),
        fit.options.mesh.ranks() > 1 ? ", more ranks" : "");
  }
  throw UserError(ExitCode::does_not_fit, text);
}

}  // namespace yoke
