#include "train/context_batch.h"

#include <algorithm>

#include "base/error.h"
#include "model/ring_attention.h"

namespace yoke {

Batch context_part(const Batch& batch, int rank, int ranks) {
  if (ranks == 1) return batch;
  const int64_t chunk = batch.length / (2 * ranks);
  YOKE_ASSERT(chunk > 0 && batch.length % (2 * ranks) == 0, "{} tokens over {} ranks", batch.length, ranks);
  Batch part{.rows = 2 * batch.rows, .length = chunk, .supervised = batch.supervised};
  for (const auto field : {&Batch::tokens, &Batch::targets, &Batch::positions, &Batch::key_begin}) {
    const std::vector<int32_t>& from = batch.*field;
    if (from.empty()) continue;
    for (const int64_t which : ring_chunks(rank, ranks)) {
      for (int64_t row = 0; row < batch.rows; ++row) {
        const auto begin = from.begin() + row * batch.length + which * chunk;
        (part.*field).insert((part.*field).end(), begin, begin + chunk);
      }
    }
  }
  if (!part.targets.empty()) {
    part.supervised = std::count_if(part.targets.begin(), part.targets.end(), [](int32_t t) { return t >= 0; });
  }
  return part;
}

DeviceBatch upload_batch(Context& ctx, const Batch& b, const DeviceBatch& memory) {
  return memory.upload(ctx, b.rows, b.length, b.tokens, b.targets, b.positions, b.key_begin);
}

void check_context_split(int64_t sequence_length, int ranks) {
  const int64_t pieces = 2 * static_cast<int64_t>(ranks);
  if (ranks == 1 || sequence_length % pieces == 0) return;
  std::string legal;
  for (int64_t c = 1; 2 * c <= sequence_length && c <= 64; ++c) {
    if (c == 1 || sequence_length % (2 * c) == 0) legal += fmt::format("{}{}", legal.empty() ? "" : ", ", c);
  }
  const int64_t below = sequence_length / pieces * pieces;
  fail_usage(
      "parallel.context is {}: sequences are cut into {} chunks, two a rank, and data.sequence_length ({}) does not "
      "divide by that. Of this length legal sizes are {}; or set data.sequence_length to {}.",
      ranks, pieces, sequence_length, legal.empty() ? "1" : legal,
      below == 0 ? fmt::format("{}", pieces) : fmt::format("{} or {}", below, below + pieces));
}

}  // namespace yoke
