#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/model_options.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"(Examples:
  yoke generate runs/corpus/model --prompt "In the beginning"
  yoke generate runs/corpus/model --prompt "Once" --temperature 0 --max-tokens 50
  yoke generate runs/corpus/model --prompt "Q: Why?" --top-k 40 --top-p 0.95 --stop "Q:" --seed 7)";

/// CLI::Range lets NaN through.
CLI::Validator number_within(double min, double max) {
  return CLI::Validator(
      [min, max](const std::string& text) {
        double number = 0;
        const bool legal = CLI::detail::lexical_cast(text, number) && number >= min && number <= max;
        return legal ? std::string() : fmt::format("{} is not a number from {} to {}", text, min, max);
      },
      "");
}

}  // namespace

void add_generate_command(CLI::App& app, std::function<void(const GenerateOptions&)> action) {
  CLI::App* command = app.add_subcommand("generate", "Sample text from a model");
  const auto options = std::make_shared<GenerateOptions>();
  add_model_options(*command, *options);
  command->add_option("--prompt", options->prompt, "The text to go on from")->required()->type_name("TEXT");
  command->add_option("--max-tokens", options->max_tokens, "New tokens at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--temperature", options->temperature, "0: always the most likely token; 1: the model's own spread")
      ->check(number_within(0, 100))
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--top-k", options->top_k, "Sample among the K most likely tokens; 0: among all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->type_name("K")
      ->capture_default_str();
  command->add_option("--top-p", options->top_p, "Sample among the most likely tokens that hold this probability")
      ->check(number_within(0, 1))
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "The same seed gives the same text")
      ->check(CLI::Range(int64_t{0}, INT64_MAX))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--stop", options->stop, "A text that ends the sample; may be given several times")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  command->footer(kExamples);
  command->callback([options, action] {
    log::setup(false);
    action(*options);
  });
}

}  // namespace yoke
