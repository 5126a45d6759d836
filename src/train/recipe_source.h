// The keys that a recipe file and the command line set, each with its value and the place it came from.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/recipe.h"
#include "train/recipe_rules.h"

namespace yoke {

class RecipeSource {
 public:
  /// UserError (usage) for text that is no YAML, keys that are not in `legal`, keys that are there twice.
  RecipeSource(std::string_view text, const std::string& name, const std::vector<RecipeOverride>& overrides,
               const std::vector<std::string>& legal);

  /// The value of "section.key", or nullptr.
  const RecipeValue* find(std::string_view key) const;

  /// Where `keys` exclude each other: one that the command line sets displaces those that the file sets.
  void displace(const std::vector<std::string>& keys);

  RecipeOrigins origins() const;

 private:
  void read_file(std::string_view text);
  void read_section(const std::string& section, const YAML::Node& node);
  void add(const std::string& key, const YAML::Node& at, const YAML::Node& value);
  void set_override(const RecipeOverride& override);
  [[noreturn]] void fail_unknown(const std::string& place, const std::string& key) const;
  bool is_section(std::string_view name) const;
  std::string place(const YAML::Node& node) const;

  std::string name_;
  std::vector<std::string> legal_;
  std::map<std::string, RecipeValue, std::less<>> values_;
};

}  // namespace yoke
