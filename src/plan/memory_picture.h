// Memory over one step as a picture: an SVG of stacked areas by kind.
#pragma once

#include <string>

#include "plan/memory_plan.h"

namespace yoke {

/// A whole SVG document: stacked bytes by kind over the step and the evaluation behind it, the parts of the step named
/// below, a line at the capacity (or a note, when it is far above), a mark at the peak, a legend.
std::string memory_picture(const MemoryPlan& plan);

}  // namespace yoke
