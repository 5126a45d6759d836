// What the commands of this layer do, without their command lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/recipe.h"

namespace yoke {

struct PlanOptions {
  std::string target;                     ///< a recipe; or a model: its folder, or its config.json
  std::vector<RecipeOverride> overrides;  ///< `--section.key VALUE`, in the order they were typed
  std::optional<std::string> gpu;         ///< a name of the catalogue; absent: this machine
  std::optional<int64_t> gpus;            ///< of a node; neither given: the ranks that the recipe asks for
  std::optional<int64_t> nodes;
  bool json = false;                        ///< one JSON object instead of a table
  std::optional<std::string> svg;           ///< file for the picture of memory over one step
  std::optional<std::string> schedule_svg;  ///< file for the picture of a pipeline's step
};

/// `yoke plan`: the plan goes to standard output. UserError (does_not_fit) behind a plan that does not fit.
void plan(const PlanOptions& options);

}  // namespace yoke
