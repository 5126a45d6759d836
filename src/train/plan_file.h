// plan.json: what a run was planned to take and what its first step took.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "train/run_setup.h"

namespace yoke {

struct Measured {
  size_t peak_bytes = 0;      ///< of the arena
  size_t resident_bytes = 0;  ///< most that the process had resident
  double step_seconds = 0;
  std::vector<size_t> rank_peaks;  ///< of the arenas of all ranks
};

/// {"settings": as settings_json() has them, "peak_bytes", "resident_bytes", "step_seconds" (at least, at the measured
/// rates), "step_flops", "peak_moment", "items": [{"name", "kind", "count", "bytes"}] alive at the peak, by kind}
nlohmann::json predicted_json(const ModelConfig& model, const EngineOptions& options, const EnginePlan& plan,
                              size_t resident_bytes);

/// {"predicted": ..., "measured": {"peak_bytes", "resident_bytes", "step_seconds"} or null}, those of this rank; of
/// several ranks both have "rank_peak_bytes" too.
void write_plan(const std::filesystem::path& path, const RunSetup& run, const Measured* measured);

/// The plan for people.
std::string plan_table(const RunSetup& run);

}  // namespace yoke
