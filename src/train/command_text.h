// Commands that messages offer: what the user typed, so that flags can be added and the whole pasted into a shell.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "train/recipe.h"

namespace yoke {

/// One word for a POSIX shell, quoted where it has to be.
std::string shell_word(const std::string& text);

/// `words` ("yoke train recipe.yaml") with the overrides that were typed. Names the global batch, which another
/// micro-batch must leave as it is, and the precision, without which 16-bit formats are not legal.
std::string command_with(const std::string& words, const std::vector<RecipeOverride>& overrides,
                         const LoadedRecipe& loaded, DType compute);

}  // namespace yoke
