// The recipe: everything a run is told, in one plain struct. docs/recipe.md explains every key.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/options.h"
#include "model/activations.h"
#include "train/optimizer.h"

namespace yoke {

enum class Initialisation { pretrained, random };
enum class DataFormat { text, jsonl, chat, alpaca, sharegpt, tokens };
enum class Precision { bf16, fp16, fp32 };
enum class ScheduleKind { constant, linear, cosine, wsd };
enum class AdapterKind { none, lora, qlora };
enum class Quantization { nf4, int8 };
enum class MasterFormat { fp32, none };
enum class GradientsFormat { fp32, bf16 };
enum class Offload { optimizer, activations, weights };
enum class PipelineSchedule { one_f_one_b, interleaved, zero_bubble };
enum class DeviceChoice { automatic, cpu, cuda };

struct ModelRecipe {
  std::string path;  ///< Hugging Face folder, or a folder with only config.json
  Initialisation init = Initialisation::pretrained;
  std::optional<std::string> tokenizer;  ///< path or `bytes`; absent: the model's
  bool operator==(const ModelRecipe&) const = default;
};

/// Data that is held back from training.
struct Validation {
  double fraction = 0;             ///< of the training documents; 0 where files are given
  std::vector<std::string> files;  ///< files, globs, folders; empty where a fraction is given
  bool operator==(const Validation&) const = default;
};

struct DataRecipe {
  std::vector<std::string> train;  ///< files, globs, folders
  Validation validation;           ///< neither: nothing is held back
  DataFormat format = DataFormat::text;
  int64_t sequence_length = 1024;  ///< tokens
  bool packing = true;
  bool operator==(const DataRecipe&) const = default;
};

struct TrainRecipe {
  std::optional<int64_t> steps;            ///< optimizer steps; exactly one of steps, epochs and tokens is present
  std::optional<double> epochs;            ///< passes over the training data
  std::optional<int64_t> tokens;           ///< tokens read
  std::optional<int64_t> micro_batch = 1;  ///< sequences per forward pass and rank; absent: auto, the fastest that fits
  int64_t global_batch = 1;                ///< sequences per optimizer step over all ranks; a multiple of micro_batch
  std::optional<Precision> precision;      ///< absent: bf16 where the processor has bf16 arithmetic, else fp32
  OptimizerKind optimizer = OptimizerKind::adamw;
  double learning_rate = 3e-4;
  ScheduleKind schedule = ScheduleKind::cosine;
  int64_t warmup = 0;  ///< steps of linear rise from 0
  std::optional<int64_t>
      decay_steps;                    ///< steps of fall to the final rate; absent: all after warm-up. wsd has it always
  double final_learning_rate = 3e-5;  ///< at most learning_rate; without meaning for `constant`
  double weight_decay = 0.1;
  std::array<double, 2> betas{0.9, 0.95};
  double epsilon = 1e-8;
  std::optional<double> momentum;  ///< of muon and sgd; absent: 0.95 and 0.9
  double clip_norm = 1.0;          ///< 0: no clipping
  int64_t seed = 1;
  bool operator==(const TrainRecipe&) const = default;
};

struct AdapterRecipe {
  AdapterKind type = AdapterKind::none;
  int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  std::vector<std::string> targets{"all-linear"};
  Quantization quantization = Quantization::nf4;
  bool double_quantization = true;
  bool operator==(const AdapterRecipe&) const = default;
};

struct MemoryRecipe {
  std::optional<Recompute> recompute;       ///< absent: auto, what makes the fastest run that fits
  std::optional<int64_t> recompute_layers;  ///< absent: all
  MomentsFormat moments = MomentsFormat::fp32;
  std::vector<Offload> offload;        ///< empty: none
  std::optional<int64_t> loss_chunks;  ///< absent: auto
  std::optional<int64_t> limit;        ///< most bytes the process may take; absent: auto, what the machine has free
  MasterFormat master = MasterFormat::fp32;
  GradientsFormat gradients = GradientsFormat::fp32;
  bool consume_gradients = false;
  bool operator==(const MemoryRecipe&) const = default;
};

struct ParallelRecipe {
  std::optional<int64_t> data;  ///< ranks; absent: auto, what the other axes leave
  int64_t zero = 1;             ///< ZeRO stage
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t context = 1;
  std::optional<int64_t> shard;  ///< ranks that a ZeRO shard is spread over; absent: auto, all that could share it
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int64_t virtual_stages = 1;  ///< layers of a rank are in so many pieces; above 1 for `interleaved` alone
  double timeout = 600;        ///< seconds that a collective may take before its ranks count as stuck
  bool operator==(const ParallelRecipe&) const = default;
};

struct CheckpointRecipe {
  int64_t every = 200;  ///< steps; 0: only when interrupted and at the end
  int64_t keep = 3;     ///< newest checkpoints that stay
  bool operator==(const CheckpointRecipe&) const = default;
};

struct EvaluateRecipe {
  int64_t every = 200;  ///< steps; 0: only at the end
  bool operator==(const EvaluateRecipe&) const = default;
};

struct LogRecipe {
  int64_t every = 10;  ///< steps
  bool tensorboard = false;
  bool operator==(const LogRecipe&) const = default;
};

/// Validated: every value is legal by itself and with the others. Relative paths are relative to the current folder.
struct Recipe {
  ModelRecipe model;
  DataRecipe data;
  TrainRecipe train;
  AdapterRecipe adapter;
  MemoryRecipe memory;
  ParallelRecipe parallel;
  DeviceChoice device = DeviceChoice::automatic;
  std::optional<int64_t> threads;  ///< absent: auto, every usable core
  CheckpointRecipe checkpoint;
  EvaluateRecipe evaluate;
  LogRecipe log;
  std::string output;  ///< folder of the run; default: runs/<name of the recipe file>
  bool operator==(const Recipe&) const = default;
};

/// `--section.key VALUE` of the command line. A value that starts with `[` is a YAML list; where a list is legal,
/// commas separate too.
struct RecipeOverride {
  std::string key;
  std::string value;
};

/// Key to the place its value came from: "recipe.yaml:3:10" or "command line". A key that is missing has its default.
using RecipeOrigins = std::map<std::string, std::string, std::less<>>;

struct LoadedRecipe {
  Recipe recipe;
  RecipeOrigins origins;
  std::string name;                       ///< the file
  std::vector<RecipeOverride> overrides;  ///< as they were given
};

/// Reads, completes and validates. Every fault is a UserError (usage) that names place, key, value and what is legal.
LoadedRecipe load_recipe(const std::filesystem::path& file, const std::vector<RecipeOverride>& overrides = {});

/// The same from text; `name` stands for the file in messages and in the default of `output`.
LoadedRecipe parse_recipe(std::string_view text, const std::string& name,
                          const std::vector<RecipeOverride>& overrides = {});

/// The data layer's options. `cache` is the folder of its token cache, `threads` are for tokenising. The recipe has
/// passed check_supported().
DataOptions data_options(const Recipe& recipe, const std::filesystem::path& cache, int threads);

/// UserError (usage) for what is legal and not built yet. The one place that knows; it shrinks as yoke grows.
void check_supported(const Recipe& recipe);

/// The part of the schedule that can only be checked once the number of steps is known (durations in epochs or tokens).
void check_schedule(const TrainRecipe& train, int64_t steps);

/// Tokens of a micro-batch stay below this: positions within one are 32-bit.
inline constexpr int64_t kLargestMicroBatchTokens = int64_t{1} << 31;

/// recipe.yaml: every value, with its origin as a comment. Parses back to the same Recipe.
std::string resolved_yaml(const LoadedRecipe& loaded);

/// Every key, "section.key" or "key", in the order of docs/recipe.md.
std::vector<std::string> recipe_keys();

struct RecipeKeyHelp {
  std::string key;
  std::string legal;    ///< "auto, or bf16 | fp16 | fp32"
  std::string initial;  ///< the default; empty where there is none
};

/// What command lines show about each key.
std::vector<RecipeKeyHelp> recipe_key_help();

}  // namespace yoke
