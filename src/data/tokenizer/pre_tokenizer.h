// Pre-tokenisation: a text is cut into the words within which byte-pair merges happen.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/regex.h"

namespace yoke {

/// What becomes of the matches of a split: words of their own, dropped, joined to a neighbour, or joined to each other.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// Cuts every word at the matches of `pattern` (at what lies between them when `invert`).
struct Split {
  Regex pattern;
  SplitBehavior behavior;
  bool invert = false;
};
/// Puts a space in front of every word that has none.
struct PrefixSpace {};
/// Writes every byte as its character of the byte alphabet.
struct MapBytes {};
/// SentencePiece's way: spaces become `replacement`, which is also put in front of words.
struct Metaspace {
  enum class Prepend { always, first, never };
  std::string replacement;
  Prepend prepend;
};

using PreTokenizerStep = std::variant<Split, PrefixSpace, MapBytes, Metaspace>;

/// Words: [begin, end) of `text`, which lives in `storage` once a step has rewritten it.
struct Words {
  struct Span {
    size_t begin, end;
  };
  std::string_view text;
  std::string storage;
  std::vector<Span> spans;
  bool starts_input = false;  ///< the first word is the beginning of what the user gave
};

/// Cuts `words` further, step by step. Words must be valid UTF-8 before each step. Thread-safe.
void pre_tokenize(const std::vector<PreTokenizerStep>& steps, Words& words);

}  // namespace yoke
