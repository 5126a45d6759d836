// What a run will take, item by item and moment by moment: from a dry run of the engine's own code.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "comm/links.h"
#include "train/engine.h"

namespace yoke {

/// Tensors of one name and kind that are alive together, such as the `gate_up` of all layers.
struct PlanItem {
  std::string name;
  MemoryKind kind = MemoryKind::workspace;
  int64_t count = 0;
  size_t bytes = 0;  ///< of all of them, alignment included
};

/// A change of what the arena holds. Events at the same place of the step follow each other in order.
struct MemoryEvent {
  double seconds = 0;  ///< the dry device's clock, 0 without rates
  int64_t bytes = 0;   ///< negative: released
  MemoryKind kind = MemoryKind::workspace;
  Moment moment;
};

/// Bytes by kind, indexed by MemoryKind.
using KindBytes = std::array<size_t, kMemoryKinds>;

/// Memory over one step and the evaluation behind it. A step of more than two micro-batches repeats the second.
struct MemoryTimeline {
  KindBytes before{};  ///< what lives as long as the run
  std::vector<MemoryEvent> events;
  double seconds = 0;  ///< the clock at the end
};

/// What the ranks of one pipeline stage take: all that hold the same shard take the same, so this is the shard that
/// takes most.
struct StagePlan {
  int rank = 0;           ///< of the mesh, the first that takes this
  size_t peak_bytes = 0;  ///< of arena
  size_t state_bytes = 0;
};

/// What a rank sends in a step, by Group.
using StepTraffic = std::array<Traffic, kGroups>;

struct EnginePlan {
  int rank = 0;                   ///< of the mesh, whose plan this is
  std::vector<StagePlan> stages;  ///< plan_mesh() alone: every pipeline rank, one where there is no pipeline
  StepTraffic traffic{};          ///< `waited`: what a step stands still for it at the given links
  size_t peak_bytes = 0;          ///< of arena: of the constructor, a full step and an evaluation
  std::vector<Arena::Allocation> alive_at_peak;  ///< in order of allocation; the last one makes the peak
  Moment moment_of_peak;
  MemoryTimeline timeline;
  double step_flops = 0;  ///< everything the operations do, recomputation included
  /// What they take at least at the given rates, and what they wait for messages at the given links; 0 without rates.
  double step_seconds = 0;

  /// What is alive at the peak, by kind, largest first within a kind. The bytes add up to the peak.
  std::vector<PlanItem> items() const;
  /// "backward of layer 3, in 'matmul workspace'"
  std::string peak_text() const;
};

/// Plans training of one rank of the mesh on a device, which computes nothing. Micro-batches after the second cost what
/// the second does, so two are run at most (of a pipeline with ZeRO-3, whose weights stay gathered from one computation
/// to the next, as many as it takes to repeat). UserError (does_not_fit) when sizes can't be computed with.
EnginePlan plan_engine(const Device& device, const ModelConfig& config, const EngineOptions& options,
                       const DeviceRates& rates = {}, int rank = 0, const LinkRates& links = {});

/// Plans every rank of the mesh: the plan of the rank that takes most memory, with the time and the work of the
/// pipeline stage that has most. All ranks get the same. UserError as plan_engine().
EnginePlan plan_mesh(const Device& device, const ModelConfig& config, const EngineOptions& options,
                     const DeviceRates& rates = {}, const LinkRates& links = {});

/// Measures what products of this type and streaming through memory reach here, in at most half of `budget` bytes;
/// takes about half a second.
DeviceRates measure_rates(const Device& device, DType compute, double budget = 0x1p30);

}  // namespace yoke
