// What a pipeline's stages take, by dry runs of each, and with that the times of a whole step.
#pragma once

#include "comm/links.h"
#include "train/engine.h"
#include "train/pipeline_timeline.h"

namespace yoke {

/// Seconds of every virtual stage at the given rates; without rates, FLOPs. Messages take their links' time;
/// gradients' reduction none.
PipelineTimes pipeline_times(const Device& device, const ModelConfig& config, const EngineOptions& options,
                             const DeviceRates& rates, const LinkRates& links = {});

/// Seconds that this device takes for a rank's own virtual stages, 0 for all others: each computation alone, the least
/// of some tries, on weights and tokens of zeros. The stages need about the memory that they need in training.
PipelineTimes measured_pipeline_times(const Device& device, const ModelConfig& config, const EngineOptions& options,
                                      int rank);

/// A step of the options' pipeline.
PipelineTimeline pipeline_timeline_of(const Device& device, const ModelConfig& config, const EngineOptions& options,
                                      const DeviceRates& rates, const LinkRates& links = {});

}  // namespace yoke
