// Tokens that are found in the text itself before any model sees it: special tokens and tokens added later.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/flat_map.h"

namespace yoke {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      ///< left out by decode(skip_special)
  bool normalized = false;   ///< looked for in the normalised text
  bool lstrip = false;       ///< takes the white space in front of it
  bool rstrip = false;       ///< takes the white space behind it
  bool single_word = false;  ///< counts only where no letter or digit touches it
};

/// Finds tokens in a text, the leftmost and of those the longest first, as Hugging Face's `tokenizers` does.
/// Thread-safe.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  /// Contents must not be empty. Of equal contents the first counts.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  struct Part {
    std::string_view text;
    std::optional<int32_t> id;  ///< of the token; none for text between tokens
  };
  /// The non-empty parts of `text`, valid UTF-8, in order.
  std::vector<Part> split(std::string_view text) const;

  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  /// A trie: (node, byte) -> node; node 0 is the root. `ends_` is the token that ends at a node, or -1.
  FlatMap<uint32_t> edges_;
  std::vector<int32_t> ends_;
  std::array<bool, 256> starts_{};
};

}  // namespace yoke
