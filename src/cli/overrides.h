// Each key of the recipe as an option of its own: `--section.key VALUE`.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "train/recipe.h"

namespace yoke {

/// What is typed goes to `overrides`, which is part of `owner`, in the order it was typed.
inline void add_recipe_overrides(CLI::App& command, const std::shared_ptr<void>& owner,
                                 std::vector<RecipeOverride>& overrides) {
  for (const RecipeKeyHelp& help : recipe_key_help()) {
    const std::string shown = help.initial.empty() ? help.legal : help.legal + "; default: " + help.initial;
    command
        .add_option_function<std::string>(
            "--" + help.key,
            [owner, &overrides, key = help.key](const std::string& value) {
              overrides.push_back({key, value});
            },
            shown)
        ->type_name("VALUE")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group("Keys of the recipe");
  }
}

}  // namespace yoke
