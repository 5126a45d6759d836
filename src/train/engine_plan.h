// What a run will take, item by item and moment by moment: from a dry run of the engine's own code.
#pragma once

#include <array>
#include <string>
#include <vector>

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

struct EnginePlan {
  size_t peak_bytes = 0;                         ///< of arena: of the constructor, a full step and an evaluation
  std::vector<Arena::Allocation> alive_at_peak;  ///< in order of allocation; the last one makes the peak
  Moment moment_of_peak;
  MemoryTimeline timeline;
  double step_flops = 0;    ///< everything the operations do, recomputation included
  double step_seconds = 0;  ///< what they take at least at the given rates; 0 without rates

  /// What is alive at the peak, by kind, largest first within a kind. The bytes add up to the peak.
  std::vector<PlanItem> items() const;
  /// "backward of layer 3, in 'matmul workspace'"
  std::string peak_text() const;
};

/// Plans training on a device, which computes nothing. Micro-batches after the second cost what the second does, so two
/// are run at most. UserError (does_not_fit) when sizes can't be computed with.
EnginePlan plan_engine(const Device& device, const ModelConfig& config, const EngineOptions& options,
                       const DeviceRates& rates = {});

/// Measures what products of this type and streaming through memory reach here, in at most half of `budget` bytes;
/// takes about half a second.
DeviceRates measure_rates(const Device& device, DType compute, double budget = 0x1p30);

}  // namespace yoke
