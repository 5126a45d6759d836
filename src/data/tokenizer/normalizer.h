// Normalisers: what is done to a text before it is cut.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/regex.h"

namespace yoke {

/// Unicode normalisation forms.
struct UnicodeForm {
  enum class Form { nfc, nfd, nfkc, nfkd } form;
};
struct Lowercase {};
/// Puts `text` in front of a text that isn't empty.
struct Prepend {
  std::string text;
};
struct ReplaceAll {
  Regex pattern;
  std::string text;
};
struct StripSpace {
  bool left, right;
};

using NormalizerStep = std::variant<UnicodeForm, Lowercase, Prepend, ReplaceAll, StripSpace>;

/// The steps one after the other. Thread-safe.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  /// The normalised text: `text` itself where nothing changes, else `storage`. `text` must be UTF-8.
  std::string_view apply(std::string_view text, std::string& storage) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace yoke
