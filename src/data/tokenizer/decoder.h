// Decoders: from the texts of tokens back to text.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "data/tokenizer/regex.h"

namespace yoke {

/// Every token is spelled in the byte alphabet, or else stands for itself; the bytes are joined.
struct DecodeByteLevel {};
/// Runs of tokens <0x00> to <0xFF> become the characters they spell.
struct DecodeByteFallback {};
/// Joins all tokens.
struct DecodeFuse {
  std::string separator;
};
/// Removes up to `start` and `stop` times `content` (one character) from the ends of every token.
struct DecodeStrip {
  std::string content;
  size_t start, stop;
};
struct DecodeReplace {
  Regex pattern;
  std::string text;
};
/// `replacement` becomes a space, and nothing in the first token when it was prepended there.
struct DecodeMetaspace {
  std::string replacement;
  bool prepended;
};

using DecoderStep =
    std::variant<DecodeByteLevel, DecodeByteFallback, DecodeFuse, DecodeStrip, DecodeReplace, DecodeMetaspace>;

/// The steps one after the other, then the tokens joined. Thread-safe.
std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens);

}  // namespace yoke
