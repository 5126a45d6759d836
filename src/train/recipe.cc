#include "train/recipe.h"

#include "base/error.h"
#include "base/file.h"
#include "train/recipe_check.h"
#include "train/recipe_keys.h"
#include "train/recipe_source.h"

namespace yoke {

namespace {

constexpr size_t kLargestRecipe = size_t{1} << 20;  // bytes

/// Fills in what follows from other values.
void complete(Recipe& recipe, const RecipeSource& source, const std::string& name) {
  TrainRecipe& train = recipe.train;
  if (source.find("train.global_batch") == nullptr) train.global_batch = train.micro_batch.value_or(1);
  if (source.find("train.final_learning_rate") == nullptr) {
    train.final_learning_rate = train.learning_rate / (train.schedule == ScheduleKind::constant ? 1 : 10);
  }
  if (source.find("output") == nullptr) {
    recipe.output = (std::filesystem::path("runs") / std::filesystem::path(name).stem()).string();
  }
}

}  // namespace

LoadedRecipe load_recipe(const std::filesystem::path& file, const std::vector<RecipeOverride>& overrides) {
  std::string text;
  try {
    text = read_file(file, kLargestRecipe);
  } catch (const UserError& error) {
    fail_usage("recipe {}", error.what());
  }
  return parse_recipe(text, file.string(), overrides);
}

LoadedRecipe parse_recipe(std::string_view text, const std::string& name,
                          const std::vector<RecipeOverride>& overrides) {
  RecipeSource source(text, name, overrides, recipe_keys());
  source.displace({"train.steps", "train.epochs", "train.tokens"});
  LoadedRecipe loaded;
  visit_recipe(loaded.recipe, [&](std::string_view key, auto& field, const auto& rule) {
    const RecipeValue* found = source.find(key);
    if (found == nullptr) return;
    RecipeValue value = *found;
    value.legal = rule.legal();
    field = rule.read(value);
  });
  complete(loaded.recipe, source, name);
  loaded.origins = source.origins();
  loaded.name = name;
  loaded.overrides = overrides;
  check_recipe(loaded, name);
  return loaded;
}

DataOptions data_options(const Recipe& recipe, const std::filesystem::path& cache, int threads) {
  DataOptions options;
  options.train = recipe.data.train;
  if (recipe.data.validation.files.empty()) {
    options.validation = recipe.data.validation.fraction;
  } else {
    options.validation = recipe.data.validation.files;
  }
  options.format = parse_format(word_of<DataFormat>(recipe.data.format, kDataFormatWords));
  options.sequence_length = recipe.data.sequence_length;
  options.packing = recipe.data.packing;
  options.seed = static_cast<uint64_t>(recipe.train.seed);
  options.cache = cache;
  options.threads = threads;
  return options;
}

std::string resolved_yaml(const LoadedRecipe& loaded) {
  std::string yaml = "# The resolved recipe: every value, and where it came from.\n";
  std::string section;
  Recipe recipe = loaded.recipe;
  visit_recipe(recipe, [&](std::string_view key, const auto& field, const auto& rule) {
    const std::string value = rule.write(field);
    if (value.empty()) return;
    const size_t dot = key.find('.');
    const std::string_view of = dot == std::string_view::npos ? "" : key.substr(0, dot);
    if (!of.empty() && of != section) yaml += fmt::format("{}:\n", of);
    section = of;
    const auto origin = loaded.origins.find(key);
    const std::string_view from = origin == loaded.origins.end() ? "default" : std::string_view(origin->second);
    const std::string line = fmt::format("{}{}: {}", of.empty() ? "" : "  ", key.substr(dot + 1), value);
    yaml += fmt::format("{:<40}  # {}\n", line, from);
  });
  return yaml;
}

std::vector<std::string> recipe_keys() {
  std::vector<std::string> keys;
  Recipe recipe;
  visit_recipe(recipe, [&](std::string_view key, const auto&, const auto&) { keys.emplace_back(key); });
  return keys;
}

std::vector<RecipeKeyHelp> recipe_key_help() {
  std::vector<RecipeKeyHelp> keys;
  Recipe recipe;
  visit_recipe(recipe, [&](std::string_view key, const auto& field, const auto& rule) {
    std::string initial = rule.write(field);
    if (initial == "\"\"" || initial == "[]") initial.clear();
    if (key == "train.global_batch") initial = "train.micro_batch";
    if (key == "train.final_learning_rate") initial = "a tenth of train.learning_rate";
    if (key == "output") initial = "runs/ and the name of the recipe";
    keys.push_back({std::string(key), rule.legal(), initial});
  });
  return keys;
}

}  // namespace yoke
