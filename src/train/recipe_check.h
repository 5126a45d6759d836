// Checks of a recipe's values against each other.
#pragma once

#include <string>

#include "train/recipe.h"

namespace yoke {

/// UserError (usage) that begins with the place of the value at fault; `name` is the recipe's.
void check_recipe(const LoadedRecipe& loaded, const std::string& name);

}  // namespace yoke
