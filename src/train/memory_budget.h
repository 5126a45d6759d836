// What memory a run may take on this machine, and how its open settings follow from it.
#pragma once

#include <algorithm>

#include "train/fit.h"
#include "train/recipe.h"

namespace yoke {

/// Resident memory of the process, in bytes.
struct MemoryBudget {
  size_t before = 0;     ///< program, libraries, tokenizer, mapped data: what is there before the arena
  size_t loader = 0;     ///< batches that are read ahead
  size_t runtime = 0;    ///< what starts with the first step: threads, compiled kernels
  size_t capacity = 0;   ///< what the process may hold in all
  bool limited = false;  ///< capacity is the recipe's memory.limit, not what the machine has free

  size_t outside() const { return before + loader + runtime; }
  /// What is left for the arena, less a reserve for what other processes take meanwhile unless the limit is the
  /// recipe's.
  double arena() const {
    const auto whole = static_cast<double>(capacity);
    const double reserve = limited ? 0 : std::min(0.01 * whole, 0x1p26);
    return std::max(whole - reserve - static_cast<double>(outside()), 0.0);
  }
};

/// Measures what is free now: physical memory and cgroup limits less what is in use, shared evenly by the ranks of this
/// host, and memory.limit.
MemoryBudget measure_budget(const Recipe& recipe, const EngineOptions& options, int threads, int local_ranks = 1);

/// What `auto` found when a run began and a resumed one keeps, because the order of sums depends on it; 0: open.
struct PinnedSettings {
  int64_t micro_batch = 0;
  int64_t loss_chunk = 0;  ///< tokens
};

/// The recipe's settings, with those that it leaves to yoke as the search finds them; as small as they go when nothing
/// fits. `asked` has the settings that are given, and micro_batch 1 where it is open.
Fit fit_recipe(const FitSearch& search, const Recipe& recipe, const EngineOptions& asked,
               const PinnedSettings& pinned = {});

/// UserError (does_not_fit) that says what is needed, what there is, and which settings would fit.
[[noreturn]] void refuse(const LoadedRecipe& loaded, const FitSearch& search, const ModelConfig& config, const Fit& fit,
                         const MemoryBudget& budget, const std::string& resume);

}  // namespace yoke
