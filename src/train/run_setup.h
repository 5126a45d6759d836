// From a recipe to everything that is fixed before the first step: model, tokenizer, data, number of steps, memory.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/hf_config.h"
#include "data/datasets.h"
#include "data/loader.h"
#include "device/device.h"
#include "train/memory_budget.h"
#include "train/recipe.h"

namespace yoke {

/// bf16 where the processor has bf16 products, else fp32, unless the recipe says.
DType compute_type(const std::optional<Precision>& precision);

/// Tokenizer of a model folder, or the one that was asked for; its ids have to fit the model's vocabulary.
std::unique_ptr<Tokenizer> open_tokenizer(const std::optional<std::string>& asked, const std::filesystem::path& model,
                                          const ModelConfig& config);

/// What a recipe makes of the engine. UserError (usage) where the model can't do what it says.
EngineOptions engine_options(const Recipe& recipe, const ModelConfig& model, DType compute);

struct RunSetup {
  LoadedRecipe loaded;
  std::string resume = "none";  ///< what is resumed: auto, none, or the path of a checkpoint
  HfConfig config;
  std::filesystem::path tokenizer_path;
  std::unique_ptr<Tokenizer> tokenizer;
  Datasets data;
  LoaderOptions loader;
  int64_t steps = 0;  ///< optimizer steps of the whole run
  Device device = Device::cpu(1);
  EngineOptions engine;
  DeviceRates rates;
  EnginePlan plan;
  MemoryBudget budget;
  size_t peak_of_setup = 0;  ///< bytes the process held at most until now

  /// Bytes that the process holds at most: while it trains, or held already when it was set up.
  size_t planned_resident() const { return std::max(budget.outside() + plan.peak_bytes, peak_of_setup); }
  const Recipe& recipe() const { return loaded.recipe; }
};

/// Reads everything and plans the run. Every fault of the recipe, the model's files or the data is a UserError here,
/// before anything is trained; a run that does not fit the memory too (does_not_fit), with settings that would.
/// `resume`: auto, none, or the path of a checkpoint; a run that is resumed keeps what `auto` found when it began.
RunSetup set_up(const LoadedRecipe& loaded, const std::string& resume = "none");

/// UserError (does_not_fit) when the planned run no longer fits what is free now.
void require_memory(const RunSetup& run);

}  // namespace yoke
