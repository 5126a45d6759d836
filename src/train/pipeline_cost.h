// What a pipeline's stages take, by dry runs of each, and with that the times of a whole step.
#pragma once

#include "train/engine.h"
#include "train/pipeline_timeline.h"

namespace yoke {

/// Seconds of every virtual stage at the given rates; without rates, FLOPs. Messages and gradients' reduction take
/// none.
PipelineTimes pipeline_times(const Device& device, const ModelConfig& config, const EngineOptions& options,
                             const DeviceRates& rates);

/// A step of the options' pipeline.
PipelineTimeline pipeline_timeline_of(const Device& device, const ModelConfig& config, const EngineOptions& options,
                                      const DeviceRates& rates);

}  // namespace yoke
