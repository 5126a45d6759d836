// Files of token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace yoke {

/// A file of format `tokens`, everything little-endian:
///
///   bytes  0..7   "yoketok" and a NUL
///   bytes  8..11  version, 1
///   bytes 12..15  bytes a token: 2 or 4, unsigned
///   bytes 16..23  number of tokens
///   bytes 24..27  id of the end-of-sequence token that separates documents, or 0xffffffff when the file doesn't say
///   bytes 28..31  0
///   bytes 32..    the tokens, to the end of the file
///
/// Files of llm.c are read too: 256 words of 4 bytes, the first three {20240520, 1, tokens} before ids of 2 bytes or
/// {20240801, 7, tokens} before ids of 4.
struct TokensHeader {
  uint64_t header_bytes = 0;
  uint32_t token_bytes = 0;
  uint64_t tokens = 0;
  int64_t eos = -1;  ///< -1: the file doesn't say

  static constexpr size_t kMaxBytes = 1024;
};

/// `start` is the file's first kMaxBytes bytes, or all when it is shorter. UserError (bad_file) when it isn't such a
/// header, the size doesn't fit it, or the file's end-of-sequence id isn't `eos`.
TokensHeader parse_tokens_header(std::string_view start, uint64_t file_bytes, int32_t eos, const std::string& file);

}  // namespace yoke
