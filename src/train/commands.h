// What the commands of the program do, without their command lines. Each returns when its work is done, throws
// UserError when the user has to act, and leaves parsing to cli/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/options.h"
#include "train/recipe.h"

namespace yoke {

struct TrainOptions {
  std::string recipe;                     ///< path of the recipe
  std::vector<RecipeOverride> overrides;  ///< `--section.key VALUE`, in the order they were typed
  std::string resume = "none";            ///< `auto`: the newest whole checkpoint under `output`; `none`; or a path
  bool dry_run = false;                   ///< stop after plan and rehearsal
  bool verbose = false;
  bool profile = false;  ///< measure each operation and print the table at the end
  std::string hosts;     ///< where ranks are started, as "a:4,b:4"; empty: on this machine
  std::string hostfile;  ///< the same in a file
  int ranks = 0;         ///< what yoke told mpirun to start; 0: yoke didn't start this process
  std::string terminal;  ///< of the process that started the ranks; rank 0's standard error goes there
};

struct GenerateOptions {
  std::string model;  ///< Hugging Face folder
  std::string prompt;
  std::optional<std::string> tokenizer;  ///< default: the model's
  int64_t max_tokens = 200;              ///< new tokens at most
  double temperature = 0.8;              ///< 0: the most likely token always
  int64_t top_k = 0;                     ///< sample among the k most likely tokens; 0: all
  double top_p = 1.0;                    ///< sample among the most likely tokens that hold this probability
  int64_t seed = 1;
  std::vector<std::string> stop;       ///< texts that end the sample, beside the end-of-sequence token
  std::optional<int> threads;          ///< default: every usable core
  std::optional<Precision> precision;  ///< default: bf16 where the processor has bf16 arithmetic, else fp32
};

struct EvalOptions {
  std::string model;              ///< Hugging Face folder
  std::vector<std::string> data;  ///< files, globs, folders
  Format format = Format::text;
  std::optional<std::string> tokenizer;    ///< default: the model's
  std::optional<int64_t> sequence_length;  ///< tokens; default: the model's longest, at most 2048
  int64_t batch = 1;                       ///< sequences per forward pass
  std::optional<int> threads;              ///< default: every usable core
  std::optional<Precision> precision;      ///< default: bf16 where the processor has bf16 arithmetic, else fp32
  bool json = false;                       ///< print one JSON object instead of lines for people
};

enum class ExportFormat { hf, peft, gguf };

struct ExportOptions {
  std::string source;  ///< a run's output folder (its newest whole checkpoint), or one checkpoint
  ExportFormat format = ExportFormat::hf;
  std::optional<std::string> output;   ///< default: `model` in the run's folder; of one checkpoint `model-step-...`
  std::optional<Precision> precision;  ///< of the files; default: what the run computes in
};

/// `yoke train`. The exit code is `done` or `interrupted`; every other ending is a UserError.
int train(const TrainOptions& options);

/// `yoke generate`: the sample goes to standard output as it grows.
int generate(const GenerateOptions& options);

/// `yoke eval`: loss (nats per token), perplexity and token count go to standard output.
int evaluate(const EvalOptions& options);

/// `yoke export`: a model folder from a checkpoint of any number of ranks, by this process alone; a few MiB of the
/// weights are in memory at a time.
int export_checkpoint(const ExportOptions& options);

}  // namespace yoke
