// A pipeline's step as a picture.
#pragma once

#include <string>

#include "train/pipeline_timeline.h"

namespace yoke {

/// SVG: a row a rank, time to the right, each computation a box with its micro-batch, and what share of the step each
/// rank stands still. `unit`: of the timeline, "s"; empty where it is none.
std::string schedule_picture(const PipelineTimeline& timeline, const std::string& title, const std::string& unit);

}  // namespace yoke
