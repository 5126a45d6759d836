// Options of every command that loads a model to use it.
#pragma once

#include "cli/choice.h"
#include "cli/commands.h"

namespace yoke {

/// MODEL, --tokenizer, --threads and --precision into `options`, which outlives the command.
template <class Options>
void add_model_options(CLI::App& command, Options& options) {
  command.add_option("MODEL", options.model, "The model, a Hugging Face folder")->required()->type_name("FOLDER");
  command.add_option("--tokenizer", options.tokenizer, "A tokenizer file or folder, or bytes; default: the model's")
      ->type_name("PATH");
  command.add_option("--threads", options.threads, "Default: every usable core")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  add_choice<Precision>(
      command, "--precision", kPrecisionWords, [&options](Precision precision) { options.precision = precision; },
      "Arithmetic");
}

}  // namespace yoke
