// yoke train where a recipe asks for several ranks and nobody has started them.
#pragma once

#include <optional>

#include "train/commands.h"

namespace yoke {

/// Starts the ranks that the recipe asks for, on this machine or on `options.hosts`, and waits for them: their exit
/// code, or 7 where a rank was lost. Nothing where this process is a rank already or all there is. UserError (usage)
/// where the recipe, the hosts and mpirun don't fit each other; nothing was started then.
std::optional<int> start_ranks(const TrainOptions& options);

/// What a rank of that run is told on its command line.
std::vector<std::string> rank_arguments(const TrainOptions& options, int ranks, const std::string& terminal);

}  // namespace yoke
