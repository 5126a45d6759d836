// Causal attention over packed documents, blocked so that no matrix of queries x keys ever exists (online softmax:
// Milakov, Gimelshein 2018; blocking: Dao et al. 2022).
//
// Query i of a row stands at position p = query_offset + i among the keys and sees the keys
//   max(key_begin[i], p - window + 1) <= j <= p        (window 0: no lower limit but key_begin)
// of the same batch row. Head h reads key/value head h / (heads / kv_heads).
//
//   y = softmax(q k^T * scale) v,  lse = log(sum exp(q k^T * scale))
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
  int64_t query_offset = 0;  ///< keys - queries or less; 0 in training
  int64_t window = 0;
  float scale = 0;  ///< positive
};

struct AttentionForward {
  AttentionShape shape;
  TensorView q;          ///< [batch * queries, heads * head_dim] f32 | bf16 | f16; columns of a fused matrix are fine
  TensorView k;          ///< [batch * keys, kv_heads * head_dim]
  TensorView v;          ///< [batch * keys, kv_heads * head_dim]
  TensorView key_begin;  ///< [batch * queries] i32, not decreasing within a row
  TensorView y;          ///< [batch * queries, heads * head_dim]
  TensorView lse;        ///< [batch * queries, heads] f32; absent: not wanted
};

struct AttentionBackward {
  AttentionShape shape;
  TensorView q, k, v, key_begin, y, lse;  ///< as in the forward
  TensorView dy;                          ///< [batch * queries, heads * head_dim]
  TensorView dq;                          ///< [batch * queries, heads * head_dim]; overwritten
  TensorView dk, dv;                      ///< [batch * keys, kv_heads * head_dim]; overwritten
};

/// Workspace: tiles of 64 x 64 a thread, and 256 rows of q and y.
void attention_forward(Context& ctx, const AttentionForward& args);
/// Workspace: tiles, one fp32 a row of y, and, unless there are few heads for the threads, for each thread the keys and
/// values of one head with their gradients in fp32.
void attention_backward(Context& ctx, const AttentionBackward& args);

}  // namespace yoke
