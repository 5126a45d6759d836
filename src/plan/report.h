// What `yoke plan` says: a table for people, one JSON object for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "plan/memory_plan.h"

namespace yoke {

/// "1.50 GiB", "12.0 MiB", "512 B"
std::string bytes_text(size_t bytes);

/// The settings, items by kind, the peak with its moment, capacity, verdict, and what is estimated.
std::string plan_report(const MemoryPlan& plan);

/// {"model", "device", "ranks", "parameters", "precision", "predicted": {the keys of plan.json's, for the
/// whole device of the rank that takes most}, "capacity": {"bytes", "source"}, "fits", "estimates": [...]}, of several
/// ranks "rank", "mesh": {...}, "pipeline_ranks": [{"rank", "peak_bytes", "state_bytes", "fits"}] and "traffic":
/// {group: {"bytes", "collectives", "waited_seconds"}}, and for a pipeline
/// "pipeline": {"schedule", "stages", "idle_share"}
nlohmann::json plan_json(const MemoryPlan& plan);

/// The message of a plan that does not fit: settings that do, behind `command`, which is what was typed; or, where none
/// does, the ones that take least, and what else to do.
std::string misfit_text(const MemoryPlan& plan, const std::string& command);

}  // namespace yoke
