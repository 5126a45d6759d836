#include "train/command_text.h"

#include <fmt/format.h>

namespace yoke {

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+:=@%,";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string command_with(const std::string& words, const std::vector<RecipeOverride>& overrides,
                         const LoadedRecipe& loaded, DType compute) {
  std::string command = words;
  for (const RecipeOverride& override : overrides) {
    command += fmt::format(" --{} {}", override.key, shell_word(override.value));
  }
  if (!loaded.origins.contains("train.global_batch") && loaded.recipe.train.global_batch > 1) {
    command += fmt::format(" --train.global_batch {}", loaded.recipe.train.global_batch);
  }
  if (!loaded.recipe.train.precision && compute == DType::bf16) command += " --train.precision bf16";
  return command;
}

}  // namespace yoke
