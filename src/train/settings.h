// The settings of the engine that a recipe gives or leaves open, as plans and runs report them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "train/engine.h"

namespace yoke {

/// "2 x 4 sequences a step, recompute block in 3 of 12 layers, loss in chunks of 512 tokens"; behind it optimizer,
/// formats and consumed gradients where they are not the default: "..., sgd, moments int8, gradients bf16".
std::string settings_text(const ModelConfig& model, const EngineOptions& options);

/// {"micro_batch", "micro_batches", "recompute", "recompute_layers", "loss_chunk" in tokens, "optimizer", "moments",
/// "master", "gradients", "consume_gradients"}; words are those of recipes, layers and tokens are counted where the
/// engine chooses them.
nlohmann::json settings_json(const ModelConfig& model, const EngineOptions& options);

}  // namespace yoke
