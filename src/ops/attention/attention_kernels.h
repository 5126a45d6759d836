#pragma once

#include "ops/attention/attention.h"

namespace yoke {

constexpr int kAttentionRows = 64;   // queries (times heads of a group) of a tile
constexpr int kAttentionKeys = 64;   // keys of a tile
constexpr int kAttentionSuper = 4;   // row blocks of a forward task: they share the packing of keys and values
constexpr int kAttentionLanes = 16;  // columns of tiles are padded to this

static inline int64_t attention_padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Where each buffer of a thread's workspace begins, in 4-byte words. `depth` elements of the summed dimension of a tile
// product share a word: two for bf16 dot products, else one.
struct AttentionForwardLayout {
  int64_t q, k, v, s, p, o, top, sum, alpha, begin, end, total;
};
struct AttentionBackwardLayout {
  int64_t k, v, k_along, dk, dv;                             // of `key_capacity` keys
  int64_t q, dy, q_along, dy_along, lse, delta, begin, end;  // of one block of rows
  int64_t s, dp, p, ds, ds_pairs, dq, total;
};

static inline AttentionForwardLayout attention_forward_layout(int64_t dim, int64_t depth) {
  constexpr int64_t rows = kAttentionRows, keys = kAttentionKeys, super = kAttentionSuper * rows;
  const int64_t cols = attention_padded(dim, kAttentionLanes);
  AttentionForwardLayout at{};
  const auto take = [&at](int64_t words) {
    const int64_t begin = at.total;
    at.total += attention_padded(words, 16);
    return begin;
  };
  at.q = take(super * dim / depth);
  at.k = take(keys * dim / depth);
  at.v = take(keys / depth * cols);
  at.s = take(keys * rows);
  at.p = take(keys / depth * rows);
  at.o = take(super * cols);
  at.top = take(super);
  at.sum = take(super);
  at.alpha = take(rows);
  at.begin = take(super);
  at.end = take(super);
  return at;
}

static inline AttentionBackwardLayout attention_backward_layout(int64_t dim, int64_t depth, int64_t key_capacity) {
  constexpr int64_t rows = kAttentionRows, keys = kAttentionKeys;
  const int64_t cols = attention_padded(dim, kAttentionLanes);
  AttentionBackwardLayout at{};
  const auto take = [&at](int64_t words) {
    const int64_t begin = at.total;
    at.total += attention_padded(words, 16);
    return begin;
  };
  at.k = take(key_capacity * dim / depth);
  at.v = take(key_capacity * dim / depth);
  at.k_along = take(key_capacity / depth * cols);
  at.dk = take(key_capacity * cols);
  at.dv = take(key_capacity * cols);
  at.q = take(rows * dim / depth);
  at.dy = take(rows * dim / depth);
  at.q_along = take(rows / depth * cols);
  at.dy_along = take(rows / depth * cols);
  at.lse = take(rows);
  at.delta = take(rows);
  at.begin = take(rows);
  at.end = take(rows);
  at.s = take(keys * rows);
  at.dp = take(keys * rows);
  at.p = take(keys * rows / depth);
  at.ds = take(keys * rows / depth);
  at.ds_pairs = depth == 1 ? at.ds : take(keys * rows / depth);
  at.dq = take(rows * cols);
  return at;
}

struct AttentionForwardKernel : AttentionForward {
  TensorView workspace;  // [threads, layout.total] f32
};

struct AttentionBackwardKernel : AttentionBackward {
  // One pass over all tiles of a key/value head; otherwise one by key blocks and one by row blocks, which computes the
  // probabilities twice but divides among more threads. Both sum in the same order: the same bits.
  bool one_pass = true;
  TensorView delta;      // [batch * kv_heads, queries * group] f32: sum of dy * y over each row
  TensorView workspace;  // [threads, layout.total] f32
};

YOKE_KERNELS(attention_forward, AttentionForwardKernel);
YOKE_KERNELS(attention_backward, AttentionBackwardKernel);

}  // namespace yoke
