// Attention over sequences that the ranks of a group share: queries stay where they are, keys and values travel around
// the ring of ranks, and every rank computes with them what its own queries see (Liu, Zaharia and Abbeel 2023).
//
// Of 2 c chunks of a sequence rank r of c holds chunks r and 2 c - 1 - r, so that under a causal mask all ranks have
// the same work: in the first round two triangles and a square of chunk x chunk, in every other round two squares.
//
// A rank's tensors hold first the chunk r of all sequences, then the chunk 2 c - 1 - r of all sequences.
//
// A rank sends its T tokens' worth of keys and values, 2 T k d elements, c - 1 times in the forward pass, and in the
// backward pass once more as often, with as many elements of their gradients. All travel in the type of the keys. With
// T = b s / c tokens of 16 bits that is (c - 1) / c * 4 b s k d bytes forward, and exactly twice that backward.
#pragma once

#include <array>

#include "comm/communicator.h"
#include "ops/attention/attention.h"

namespace yoke {

/// The chunks that a rank holds, in their order in its tensors.
inline std::array<int64_t, 2> ring_chunks(int rank, int ranks) { return {rank, 2 * ranks - 1 - rank}; }

/// `args` as for attention_forward(), of the two chunks: shape.batch counts two rows a sequence, shape.queries and
/// shape.keys are the length of a chunk, the offsets are not used, key_begin are indices within the whole sequence. y
/// has q's type; its sums over rounds are fp32.
/// Memory: keys and values twice; for 16-bit types y in fp32.
void ring_attention_forward(Context& ctx, Communicator& ring, int64_t layer, const AttentionForward& args);

/// Likewise. dq, dk and dv have q's type and are overwritten. dq is an fp32 sum; a key's gradient is rounded to its
/// type with every rank that it visits. Memory: keys and values twice, their gradients twice and once in fp32; for
/// 16-bit types once more in fp32, and dq in fp32.
void ring_attention_backward(Context& ctx, Communicator& ring, int64_t layer, const AttentionBackward& args);

}  // namespace yoke
