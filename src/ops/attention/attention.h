// Causal attention over packed documents, blocked so that no matrix of queries x keys ever exists (online softmax:
// Milakov, Gimelshein 2018; blocking: Dao et al. 2022).
//
// Query i of a batch row stands at position p = query_offset + i of the row, and the keys at hand are those at
// positions key_offset .. key_offset + keys - 1. It sees the keys at
//   max(key_begin[i], p - window + 1) <= j <= p        (window 0: no lower limit but key_begin)
// among them. Head h reads key/value head h / (heads / kv_heads).
//
//   y = softmax(q k^T * scale) v,  lse = log(sum exp(q k^T * scale))
//
// A query that sees none of the keys gets y = 0 and lse = -infinity, and no gradient.
//
// Keys may come in parts. Let y1, lse1 be the result for some of a query's keys and y2, lse2 that for others; for all
// of them lse = log(exp(lse1) + exp(lse2)), y = exp(lse1 - lse) y1 + exp(lse2 - lse) y2. A forward call with `merge`
// does that. Backward needs y and lse of all keys; each part then adds its share to dq.
//
// Sums, exponentials and lse are fp32. Where the processor multiplies bf16, probabilities and their gradients are
// rounded to it before they enter a product; otherwise products of 16-bit tensors are fp32 throughout. The same bits
// for any number of threads.
#pragma once

#include "device/context.h"

namespace yoke {

struct AttentionShape {
  int64_t batch = 0;
  int64_t queries = 0;  ///< per batch row
  int64_t keys = 0;     ///< per batch row
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t query_offset = 0;  ///< position of the first query
  int64_t window = 0;
  float scale = 0;         ///< positive
  int64_t key_offset = 0;  ///< position of the first key
};

struct AttentionForward {
  AttentionShape shape;
  TensorView q;          ///< [batch * queries, heads * head_dim] f32 | bf16 | f16; columns of a fused matrix are fine
  TensorView k;          ///< [batch * keys, kv_heads * head_dim]
  TensorView v;          ///< [batch * keys, kv_heads * head_dim]
  TensorView key_begin;  ///< [batch * queries] i32, positions, not decreasing within a row
  TensorView y;          ///< [batch * queries, heads * head_dim] q's type or f32
  TensorView lse;        ///< [batch * queries, heads] f32; absent: not wanted
  bool merge = false;    ///< y and lse hold the result for other keys, and are to hold that for those and these
};

struct AttentionBackward {
  AttentionShape shape;
  TensorView q, k, v, key_begin, y, lse;  ///< as in the forward, y of q's type; y and lse for all keys of the queries
  TensorView dy;                          ///< [batch * queries, heads * head_dim]
  TensorView dq;                          ///< [batch * queries, heads * head_dim] q's type or f32
  TensorView dk, dv;                      ///< [batch * keys, kv_heads * head_dim] q's type or f32
  bool accumulate_queries = false;        ///< adds to what dq holds
  bool accumulate_keys = false;           ///< adds to what dk and dv hold
};

/// Workspace: tiles of 64 x 64 a thread, and 256 rows of q and y.
void attention_forward(Context& ctx, const AttentionForward& args);
/// Workspace: tiles, one fp32 a row of y, and, unless there are few heads for the threads, for each thread the keys and
/// values of one head with their gradients in fp32.
void attention_backward(Context& ctx, const AttentionBackward& args);

}  // namespace yoke
