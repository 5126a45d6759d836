// A micro-batch as the model eats it.
#pragma once

#include <cstdint>
#include <vector>

namespace yoke {

/// `rows` x `length` tokens, row-major. Documents packed into one row do not see each other.
struct Batch {
  static constexpr int32_t kIgnore = -100;  ///< target of a position that carries no loss

  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;    ///< the token that follows, or kIgnore
  std::vector<int32_t> positions;  ///< restarts at 0 with every document
  std::vector<int32_t> key_begin;  ///< index within the row of the document's first token
  int64_t supervised = 0;          ///< targets that are not kIgnore
};

}  // namespace yoke
