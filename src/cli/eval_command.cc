#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/model_options.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"(Examples:
  yoke eval runs/corpus/model --data held-out.txt
  yoke eval SmolLM2-135M --data 'corpus/*.jsonl' --format jsonl --sequence-length 1024 --batch 4
  yoke eval runs/corpus/model --data held-out.txt --json)";

}  // namespace

void add_eval_command(CLI::App& app, std::function<void(const EvalOptions&)> action) {
  CLI::App* command = app.add_subcommand("eval", "Loss and perplexity of a model on files");
  const auto options = std::make_shared<EvalOptions>();
  add_model_options(*command, *options);
  command->add_option("--data", options->data, "Files, globs or folders; several may follow")
      ->required()
      ->type_name("FILES");
  command
      ->add_option_function<std::string>(
          "--format", [options](const std::string& name) { options->format = parse_format(name); },
          "How documents are stored: text | jsonl | tokens [text]")
      ->type_name("WORD");
  command
      ->add_option("--sequence-length", options->sequence_length,
                   "Tokens in a row; default: the model's longest, at most 2048")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24))
      ->type_name("N");
  command->add_option("--batch", options->batch, "Rows in a forward pass")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(kExamples);
  command->callback([options, action] {
    log::setup(false);
    action(*options);
  });
}

}  // namespace yoke
