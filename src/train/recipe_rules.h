// What is legal for one value of a recipe: reading it from YAML, and writing it so that it reads back the same.
#pragma once

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/recipe_words.h"

namespace yoke {

/// One value of a recipe before it is understood.
struct RecipeValue {
  std::string key;
  YAML::Node node;
  std::string place;  ///< "recipe.yaml:3:10" or "command line"
  bool from_command_line = false;
  std::string legal;  ///< what the key's rule says, for messages
};

/// "recipe.yaml:3:10: train.steps is 'ten'; it must be <legal>.<hint>"
[[noreturn]] void fail_value(const RecipeValue& value, const std::string& hint = "");

/// For messages: cut to a readable length, without control characters (a recipe must not write to the terminal).
std::string printable(const std::string& text);

/// Text of a single value; a list, a map or nothing is an error.
std::string scalar_text(const RecipeValue& value);

/// Texts of a single value or of a list of them. On the command line commas separate, too.
std::vector<std::string> scalar_texts(const RecipeValue& value);

/// `text` as a YAML value, quoted where it has to be.
std::string yaml_text(const std::string& text);
std::string yaml_list(const std::vector<std::string>& texts);

/// A whole number: digits, perhaps a fraction or an exponent and a suffix k, M, G or T (powers of 1000).
struct Whole {
  int64_t min = 1;
  int64_t max = INT64_MAX;
  std::string legal() const;
  int64_t read(const RecipeValue& value) const;
  std::string write(int64_t value) const { return std::to_string(value); }
};

/// Bytes: a whole number with a unit, B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024). The
/// unit may be left out; a number need not be whole where its unit makes it so.
struct Bytes {
  std::string legal() const { return "a size in bytes, as 24GiB, 24GB or 25769803776"; }
  int64_t read(const RecipeValue& value) const;
  std::string write(int64_t value) const { return std::to_string(value); }
};

struct Real {
  double min = 0;
  double max = 1;
  bool min_is_legal = true;
  bool max_is_legal = true;
  std::string legal() const;
  double read(const RecipeValue& value) const;
  std::string write(double value) const { return fmt::format("{}", value); }
};

struct Flag {
  std::string legal() const { return "true or false"; }
  bool read(const RecipeValue& value) const;
  std::string write(bool value) const { return value ? "true" : "false"; }
};

/// Text that is not empty, such as a path.
struct Text {
  const char* what;
  std::string legal() const { return what; }
  std::string read(const RecipeValue& value) const;
  std::string write(const std::string& value) const { return yaml_text(value); }
};

/// One such text or a list of them.
struct Texts {
  const char* what;
  std::string legal() const { return what; }
  std::vector<std::string> read(const RecipeValue& value) const;
  std::string write(const std::vector<std::string>& value) const { return yaml_list(value); }
};

/// Two numbers, each as `each` says.
struct RealPair {
  Real each;
  std::string legal() const { return "a list of two, each " + each.legal(); }
  std::array<double, 2> read(const RecipeValue& value) const;
  std::string write(const std::array<double, 2>& value) const;
};

/// A fraction of the training documents, or files. `none` for neither.
struct FractionOrFiles {
  std::string legal() const;
  Validation read(const RecipeValue& value) const;
  std::string write(const Validation& value) const;
};

/// One of some words.
template <class E>
struct Choice {
  std::span<const Word<E>> words;

  std::vector<std::string> texts() const {
    std::vector<std::string> all;
    for (const Word<E>& word : words) all.emplace_back(word.text);
    return all;
  }
  std::string legal() const { return fmt::format("{}", fmt::join(texts(), " | ")); }
  E find(const RecipeValue& value, const std::string& text) const {
    for (const Word<E>& word : words) {
      if (word.text == text) return word.value;
    }
    fail_value(value, did_you_mean(text, texts()));
  }
  E read(const RecipeValue& value) const { return find(value, scalar_text(value)); }
  std::string write(E value) const { return std::string(word_of(value, words)); }
};

/// `none`, one of some words, or a list of them.
template <class E>
struct Choices {
  Choice<E> each;

  std::string legal() const { return "none, or a list of " + each.legal(); }
  std::vector<E> read(const RecipeValue& value) const {
    const std::vector<std::string> texts = scalar_texts(value);
    std::vector<E> found;
    if (texts.size() == 1 && texts[0] == "none") return found;
    for (const std::string& text : texts) {
      const E one = each.find(value, text);
      for (const E other : found) {
        if (other == one) fail_value(value, " Each at most once.");
      }
      found.push_back(one);
    }
    return found;
  }
  std::string write(const std::vector<E>& values) const {
    if (values.empty()) return "none";
    std::vector<std::string> texts;
    for (const E value : values) texts.push_back(each.write(value));
    return yaml_list(texts);
  }
};

/// A word, `auto` as a rule, for "absent", or what `Rule` says.
template <class Rule>
struct AutoOr {
  Rule rule;
  std::string_view word = "auto";

  std::string legal() const { return fmt::format("{}, or {}", word, rule.legal()); }
  auto read(const RecipeValue& value) const {
    std::optional<decltype(rule.read(value))> result;
    if (value.node.IsScalar() && value.node.Scalar() == word) return result;
    result = rule.read(value);
    return result;
  }
  template <class T>
  std::string write(const std::optional<T>& value) const {
    return value ? rule.write(*value) : std::string(word);
  }
};

/// A key that is left out for "absent".
template <class Rule>
struct Absent {
  Rule rule;

  std::string legal() const { return rule.legal(); }
  auto read(const RecipeValue& value) const { return std::optional(rule.read(value)); }
  template <class T>
  std::string write(const std::optional<T>& value) const {
    return value ? rule.write(*value) : "";
  }
};

}  // namespace yoke
