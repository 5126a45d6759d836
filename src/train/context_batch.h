// A batch on its way to the device, and a sequence's share of each rank under context parallelism.
#pragma once

#include "data/batch.h"
#include "model/transformer.h"

namespace yoke {

/// Rank `rank`'s part of a batch whose sequences `ranks` ranks share: chunks rank and 2 ranks - 1 - rank of every row,
/// as 2 x rows rows of length / (2 ranks): first the one chunk of all rows, then the other (model/ring_attention.h).
/// Targets and positions are those of the tokens; key_begin stay indices within the whole row. A batch without data,
/// for plans, gives one without data. The length divides by 2 ranks, unless there is one rank: its part is the batch.
Batch context_part(const Batch& batch, int rank, int ranks);

/// Fills the front of `memory`.
DeviceBatch upload_batch(Context& ctx, const Batch& batch, const DeviceBatch& memory);

/// UserError (usage) with the legal sizes when sequences of this length can't be cut for `ranks` ranks.
void check_context_split(int64_t sequence_length, int ranks);

}  // namespace yoke
