// Learning rate schedules.
#pragma once

#include "train/recipe.h"

namespace yoke {

/// Rate of optimizer step `step`, 1 to `total_steps`. Warm-up rises linearly and reaches learning_rate at step
/// `warmup`. The fall to final_learning_rate takes decay_steps (default: all after warm-up), begins right after
/// warm-up, for `wsd` so that it ends with the run, and then the floor holds. Depends on steps alone, never on ranks.
double learning_rate(const TrainRecipe& train, int64_t total_steps, int64_t step);

}  // namespace yoke
