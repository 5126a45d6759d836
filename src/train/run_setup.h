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
#include "train/agreement.h"
#include "train/memory_budget.h"
#include "train/recipe.h"

namespace yoke {

/// bf16 where the processor has bf16 products, else fp32, unless the recipe says.
DType compute_type(const std::optional<Precision>& precision);

/// Tokenizer of a model folder, or the one that was asked for; its ids have to fit the model's vocabulary.
std::unique_ptr<Tokenizer> open_tokenizer(const std::optional<std::string>& asked, const std::filesystem::path& model,
                                          const ModelConfig& config);

/// What a recipe makes of the engine, on this mesh or on the recipe's own. UserError (usage) where the model can't do
/// what it says.
EngineOptions engine_options(const Recipe& recipe, const ModelConfig& model, DType compute,
                             std::optional<MeshSizes> mesh = {});

/// This process's place among the ranks of the run.
struct RankSetup {
  MeshSizes mesh;
  int rank = 0;
  int local_ranks = 1;         ///< of this host, which share its memory
  std::optional<int> threads;  ///< where the recipe doesn't say; absent: every usable core
  HostGroup* host = nullptr;   ///< of all ranks; null where there is one
  const RankNames* names = nullptr;
  MeshPlace place() const { return Mesh(mesh, rank).place(); }
};

struct RunSetup {
  LoadedRecipe loaded;
  std::string resume = "none";  ///< what is resumed: auto, none, or the path of a checkpoint
  RankSetup ranks;
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
  std::vector<size_t> rank_peaks;  ///< plan.peak_bytes of every rank
  MemoryBudget budget;
  size_t peak_of_setup = 0;  ///< bytes the process held at most until now

  /// Bytes that the process holds at most: while it trains, or held already when it was set up.
  size_t planned_resident() const { return std::max(budget.outside() + plan.peak_bytes, peak_of_setup); }
  const Recipe& recipe() const { return loaded.recipe; }
};

/// Reads everything and plans the run. Every fault of the recipe, the model's files or the data is a UserError here,
/// before anything is trained; a run that does not fit the memory too (does_not_fit), with settings that would.
/// `resume`: auto, none, or the path of a checkpoint; a run that is resumed keeps what `auto` found when it began. Of
/// several ranks all call it; a fault of any is a SharedError of all, and what is left open is settled alike.
RunSetup set_up(const LoadedRecipe& loaded, const std::string& resume = "none", const RankSetup& ranks = {});

/// UserError (does_not_fit) when the planned run no longer fits what is free now.
void require_memory(const RunSetup& run);

}  // namespace yoke
