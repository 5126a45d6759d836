// Which settings of a run fit its memory, and which of them is the fastest: every candidate is a dry run of the engine,
// of each rank that differs from others, so that all ranks find the same.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/engine_plan.h"

namespace yoke {

/// What a search may change. None of it changes what is computed but for the order of sums (micro_batch, loss_chunk).
struct FitFreedom {
  bool recompute = false;    ///< the setting, and for how many layers
  bool loss_chunk = false;   ///< halved, only where nothing fits otherwise
  bool micro_batch = false;  ///< among the divisors of the global batch
};

struct Fit {
  EngineOptions options;
  EnginePlan plan;  ///< plan_mesh()
};

class FitSearch {
 public:
  /// `budget`: bytes that the arena of any rank may take.
  FitSearch(const Device& device, const ModelConfig& config, const DeviceRates& rates, double budget,
            const LinkRates& links = {})
      : device_(device), config_(config), rates_(rates), budget_(budget), links_(links) {}

  /// The fastest settings that fit; of those within 1 % of it, the ones that take least memory. Nothing when none fits.
  std::optional<Fit> fastest(const EngineOptions& options, const FitFreedom& freedom) const;
  /// The settings that take least, whether they fit or not.
  Fit smallest(const EngineOptions& options, const FitFreedom& freedom) const;

  /// The same search with less to give away.
  FitSearch tighter(double bytes) const { return {device_, config_, rates_, budget_ - bytes, links_}; }

  EnginePlan plan(const EngineOptions& options) const { return plan_mesh(device_, config_, options, rates_, links_); }
  bool fits(const EnginePlan& plan) const { return static_cast<double>(plan.peak_bytes) <= budget_; }

 private:
  bool is_hopeless(const EngineOptions& options, Recompute setting) const;
  std::optional<Fit> with_recompute(EngineOptions options, Recompute setting) const;
  std::optional<Fit> search(const EngineOptions& options, const FitFreedom& freedom) const;

  const Device& device_;
  const ModelConfig& config_;
  const DeviceRates& rates_;
  double budget_;
  LinkRates links_;
};

/// `options` with higher stages of ZeRO, which change nothing but where state lives; none where one rank holds it all.
std::vector<EngineOptions> higher_stages(const EngineOptions& options);

/// `options` with ever cheaper formats of what the optimizer keeps, each with all that came before: they change what is
/// computed, within the bounds that docs/recipe.md gives.
std::vector<EngineOptions> cheaper_formats(const EngineOptions& options);

/// The recipe keys that make `to` of `from`: "--train.micro_batch 2 --memory.recompute block".
std::string recipe_flags(const ModelConfig& config, const EngineOptions& from, const EngineOptions& to);

/// Settings that fit where `asked` does not, each with its bytes, its time against `asked` and the flags for it, one a
/// line after `command`; nothing when none fits. `command` is what the user typed.
std::string fitting_settings(const FitSearch& search, const ModelConfig& config, const Fit& asked,
                             const std::string& command);

}  // namespace yoke
