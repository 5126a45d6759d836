// A run's state on disk: resumable checkpoints, and the result as a Hugging Face folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/training_state.h"
#include "train/trainer.h"

namespace yoke {

/// Writes checkpoints/step-NNNNNN under the run's output and removes the oldest beyond checkpoint.keep.
void save_run(const RunSetup& run, const Engine& engine, Context& ctx, const TrainingState& state);

/// What the run that `run.resume` names had settled on; nothing where there is no such checkpoint, or none that says.
PinnedSettings saved_settings(const RunSetup& run);

/// Finds what `run.resume` (auto, none, or the path of a checkpoint) means, loads it into the engine and returns its
/// state; nothing when the run starts anew. Torn checkpoints are skipped with a reason in the log. UserError when an
/// asked-for checkpoint is not whole, or belongs to another model, data set or precision of state.
std::optional<TrainingState> load_run(const RunSetup& run, Engine& engine, Context& ctx);

/// Whether a checkpoint is of a run of this model.
bool is_checkpoint_of(const Checkpoint& checkpoint, const ModelConfig& model);

/// Pretrained weights of the recipe's model into the engine.
void load_pretrained(const RunSetup& run, Engine& engine, Context& ctx);

/// Files that go into a model folder as they are: the tokenizer's and generation_config.json. Those of a byte tokenizer
/// are made under the run's output.
std::vector<std::filesystem::path> carried_files(const Recipe& recipe, std::filesystem::path tokenizer);

/// The trained model with its tokenizer files.
void export_model(const RunSetup& run, const Engine& engine, Context& ctx, const std::filesystem::path& folder);

}  // namespace yoke
