// What a mesh asks of a model and of a run.
#pragma once

#include "train/engine.h"

namespace yoke {

/// UserError (usage) where the model or the run can't be divided over options.mesh: names the key, what it has to
/// divide and the legal sizes.
void check_mesh(const EngineOptions& options, const ModelConfig& model);

}  // namespace yoke
