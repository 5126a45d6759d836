// The memory of a run on this machine or on a named GPU: what the dry run says, and what is needed beside the arena.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/catalogue.h"
#include "train/fit.h"
#include "train/pipeline_timeline.h"
#include "train/recipe.h"

namespace yoke {

/// A line of the plan: tensors at the peak, or memory outside the arena.
struct PlanLine {
  std::string name;
  std::string kind;  ///< a MemoryKind's name, "loader", or "overhead"
  int64_t count = 1;
  size_t bytes = 0;
};

/// The ranks that are planned, where that is not the recipe's business.
struct PlannedRanks {
  std::optional<MeshSizes> mesh;  ///< absent: the recipe's, data: auto being 1
  int node_ranks = 0;             ///< of a node; 0: of a GPU's node 8 at most, of this machine all
};

/// A plan of all ranks, with the table of the one that takes most memory.
struct MemoryPlan {
  std::string model;  ///< as it was given
  ModelConfig config;
  EngineOptions engine;
  std::optional<Gpu> gpu;              ///< absent: this machine
  std::string device;                  ///< "cpu (avx512, 2 threads)", "H100 SXM5"
  Device planned_on = Device::cpu(1);  ///< what the dry runs stand for
  DeviceRates rates;
  LinkRates links;
  EnginePlan plan;
  std::vector<PlanLine> outside;             ///< beside the arena, on the same device
  size_t capacity = 0;                       ///< bytes that may be used for all of it
  bool limited = false;                      ///< capacity is the recipe's memory.limit
  std::string capacity_source;               ///< where that figure comes from
  int local_ranks = 1;                       ///< of this machine, which share its memory
  std::optional<PipelineTimeline> pipeline;  ///< a step of all stages, in seconds; without rates, in FLOPs
  std::vector<std::string> estimates;        ///< which figures are no exact sizes, and why

  /// The arena's peak, item by item, then what is outside.
  std::vector<PlanLine> lines() const;
  /// Of all lines.
  size_t needed() const;
  /// Beside the arena.
  size_t outside_bytes() const { return needed() - plan.peak_bytes; }
  bool fits() const { return needed() <= capacity; }
  /// For settings that fit the same capacity; it refers to this plan.
  FitSearch search() const;
};

/// Plans what a recipe says, weights and data unseen; only the model's config.json is read. UserError (usage) where the
/// recipe, or the GPU, can't do it; (does_not_fit) when sizes can't be computed with.
MemoryPlan plan_memory(const Recipe& recipe, const std::optional<Gpu>& gpu, const PlannedRanks& ranks = {});

}  // namespace yoke
