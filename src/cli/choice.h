// Options whose values are words, with the nearest legal word for a mistyped one.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "train/recipe_words.h"

namespace yoke {

/// `--name WORD`; `set` gets the value of the word.
template <class E, class Set>
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::span<const Word<E>> words, Set set,
                        const std::string& description) {
  std::vector<std::string> texts;
  for (const Word<E>& word : words) texts.emplace_back(word.text);
  const std::string legal = fmt::format("{}", fmt::join(texts, " | "));
  return app
      .add_option_function<std::string>(
          name,
          [words, texts, legal, name, set](const std::string& text) {
            for (const Word<E>& word : words) {
              if (word.text == text) return set(word.value);
            }
            fail_usage("{} is '{}'; it must be {}.{}", name, text, legal, did_you_mean(text, texts));
          },
          fmt::format("{}: {}", description, legal))
      ->type_name("WORD");
}

}  // namespace yoke
