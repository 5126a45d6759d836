// Which ranks a recipe asks for, and whether those that were started are they.
#pragma once

#include <optional>

#include "comm/launch.h"
#include "comm/mesh.h"
#include "train/recipe.h"

namespace yoke {

/// "1, 2, 3, 6": what divides n, for messages.
std::string divisors_text(int64_t n);

/// The sizes as they are given; data: auto is 1.
MeshSizes mesh_sizes(const ParallelRecipe& parallel);

/// The mesh of `parallel:`; data: auto takes what the other axes leave of `ranks`. Absent `ranks`: no launcher started
/// this process, and data: auto is 1. UserError (usage) where the sizes don't give `ranks`, with those that would, and
/// where `shard` doesn't divide data x context.
MeshSizes mesh_sizes(const LoadedRecipe& loaded, std::optional<int> ranks);

}  // namespace yoke
