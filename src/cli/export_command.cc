#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/choice.h"
#include "cli/commands.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"(Examples:
  yoke export runs/corpus --to hf
  yoke export runs/corpus/checkpoints/step-000200 --to hf --output step-200 --precision fp32)";

constexpr Word<ExportFormat> kFormats[] = {
    {ExportFormat::hf, "hf"}, {ExportFormat::peft, "peft"}, {ExportFormat::gguf, "gguf"}};

}  // namespace

void add_export_command(CLI::App& app, std::function<void(const ExportOptions&)> action) {
  CLI::App* command = app.add_subcommand("export", "Write a run's checkpoint as a model for other programs");
  const auto options = std::make_shared<ExportOptions>();
  command->add_option("RUN", options->source, "A run's output folder, or one of its checkpoints")->required();
  add_choice<ExportFormat>(
      *command, "--to", kFormats, [options](ExportFormat format) { options->format = format; }, "What to write")
      ->required();
  add_choice<Precision>(
      *command, "--precision", kPrecisionWords, [options](Precision precision) { options->precision = precision; },
      "Type of the weights; default: what the run computes in");
  command
      ->add_option("--output", options->output,
                   "Folder to write; default: model in the run's folder, of one checkpoint model-step-...")
      ->type_name("FOLDER");
  command->footer(kExamples);
  command->callback([options, action] {
    log::setup(false);
    action(*options);
  });
}

}  // namespace yoke
