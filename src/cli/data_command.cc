#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "data/inspect.h"
#include "data/permutation.h"
#include "train/run_setup.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"(Examples:
  yoke data inspect recipe.yaml
  yoke data inspect recipe.yaml --samples 10 --data.sequence_length 256
  yoke data inspect recipe.yaml | less)";

struct InspectOptions {
  std::string recipe;
  std::vector<RecipeOverride> overrides;
  int64_t samples = 2;
};

/// The first rows that training would read.
void print_samples(const Dataset& data, const Tokenizer& tokenizer, int64_t samples, uint64_t seed) {
  const bool colour = ::isatty(STDOUT_FILENO) == 1;
  fmt::print("\n{}\n", colour ? "Supervised tokens are green." : "Text in ⟦ ⟧ is not supervised.");
  const Permutation order(static_cast<uint64_t>(data.rows()), seed, 0);
  for (int64_t i = 0; i < std::min(samples, data.rows()); ++i) {
    const auto row = static_cast<int64_t>(order(static_cast<uint64_t>(i)));
    fmt::print("\n{}", describe_row(data, row, tokenizer, colour));
  }
}

void inspect(const InspectOptions& options) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  const Recipe& recipe = loaded.recipe;
  check_supported(recipe);
  const auto tokenizer =
      open_tokenizer(recipe.model.tokenizer, recipe.model.path, read_hf_config(recipe.model.path).model);
  const std::filesystem::path cache = std::filesystem::path(recipe.output).parent_path() / ".cache";
  const auto threads = static_cast<int>(recipe.threads.value_or(usable_cores()));
  const DataOptions data_section = data_options(recipe, cache, threads);
  const Datasets data = open_datasets(data_section, *tokenizer);
  fmt::print("{}", describe(data));
  print_samples(*data.train, *tokenizer, options.samples, data_section.seed);
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Look at training data");
  data->require_subcommand(1);
  CLI::App* command = data->add_subcommand("inspect", "Rows as the model will see them, and what became of the corpus");
  const auto options = std::make_shared<InspectOptions>();
  command->add_option("RECIPE", options->recipe, "The recipe, a YAML file")->required()->type_name("FILE");
  command->add_option("--samples", options->samples, "Rows to show")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->capture_default_str();
  for (const RecipeKeyHelp& help : recipe_key_help()) {
    if (!help.key.starts_with("data.") && !help.key.starts_with("model.") && help.key != "train.seed") continue;
    command
        ->add_option_function<std::string>(
            "--" + help.key,
            [options, key = help.key](const std::string& value) {
              options->overrides.push_back({key, value});
            },
            help.legal)
        ->type_name("VALUE")
        ->group("Keys of the recipe");
  }
  command->footer(kExamples);
  command->callback([options] {
    log::setup(false);
    inspect(*options);
  });
}

}  // namespace yoke
