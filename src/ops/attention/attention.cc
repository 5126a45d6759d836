#include "ops/attention/attention.h"

#include <algorithm>
#include <limits>

#include "ops/attention/attention_kernels.h"
#include "ops/check.h"

namespace yoke {
namespace {

void check_shape(const AttentionShape& s) {
  YOKE_ASSERT(s.batch > 0 && s.queries > 0 && s.keys > 0 && s.heads > 0 && s.kv_heads > 0, "attention: empty shape");
  YOKE_ASSERT(s.heads % s.kv_heads == 0, "attention: {} heads over {} key/value heads", s.heads, s.kv_heads);
  YOKE_ASSERT(s.head_dim > 0 && s.head_dim % 2 == 0, "attention: head_dim {} is not even", s.head_dim);
  YOKE_ASSERT(s.query_offset >= 0 && s.query_offset + s.queries <= s.keys, "attention: queries [{}, {}) of {} keys",
              s.query_offset, s.query_offset + s.queries, s.keys);
  YOKE_ASSERT(s.keys < std::numeric_limits<int32_t>::max() - kAttentionKeys, "attention: {} keys", s.keys);
  YOKE_ASSERT(s.window >= 0 && s.scale > 0, "attention: window {}, scale {}", s.window, s.scale);
}

template <class Args>
void check_tensors(const char* op, const Args& a) {
  const AttentionShape& s = a.shape;
  check_shape(s);
  check_compute_type(op, a.q);
  const int64_t rows = s.batch * s.queries;
  check_tensor(op, "q", a.q, a.q.dtype, rows, s.heads * s.head_dim);
  check_tensor(op, "k", a.k, a.q.dtype, s.batch * s.keys, s.kv_heads * s.head_dim);
  check_tensor(op, "v", a.v, a.q.dtype, s.batch * s.keys, s.kv_heads * s.head_dim);
  check_tensor(op, "key_begin", a.key_begin, DType::i32, 1, rows);
  check_tensor(op, "y", a.y, a.q.dtype, rows, s.heads * s.head_dim);
  if (!a.lse.absent()) check_tensor(op, "lse", a.lse, DType::f32, rows, s.heads);
}

/// Pairs of a query and a key it may see, over all batch rows and heads, as if every row were one document.
double visible_pairs(const AttentionShape& s) {
  // Queries at positions below `full` see all keys up to their own; the others see `window` keys.
  const int64_t first = s.query_offset, last = s.query_offset + s.queries;
  const int64_t full = s.window == 0 ? last : std::clamp(s.window, first, last);
  const double growing = 0.5 * static_cast<double>(full - first) * static_cast<double>(first + 1 + full);
  const double constant = static_cast<double>(last - full) * static_cast<double>(s.window);
  return (growing + constant) * static_cast<double>(s.batch * s.heads);
}

/// Elements that share a word in tile products, see attention_kernels.h.
int64_t depth(const Context& ctx, DType dtype) {
  return dtype == DType::bf16 && ctx.device.isa() == Isa::avx512 ? 2 : 1;
}

/// A set of tiles for each thread; a GPU's are in its shared memory.
TensorView allocate_tiles(Context& ctx, int64_t threads, int64_t words) {
  return ctx.arena.allocate("attention tiles", DType::f32, {ctx.device.models_gpu() ? 0 : threads, words});
}

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& a) {
  check_tensors("attention_forward", a);
  const AttentionShape& s = a.shape;
  ArenaScope scope(ctx.arena);
  AttentionForwardKernel kernel{a, {}};
  const int64_t words = attention_forward_layout(s.head_dim, depth(ctx, a.q.dtype)).total;
  kernel.workspace = allocate_tiles(ctx, ctx.device.threads(), words);
  launch(ctx, "attention_forward", attention_forward_kernels, kernel,
         {.flops = 4 * static_cast<double>(s.head_dim) * visible_pairs(s),
          .bytes_read = static_cast<double>(a.q.bytes() + a.k.bytes() + a.v.bytes()),
          .bytes_written = static_cast<double>(a.y.bytes())});
}

void attention_backward(Context& ctx, const AttentionBackward& a) {
  check_tensors("attention_backward", a);
  const AttentionShape& s = a.shape;
  const int64_t threads = ctx.device.threads(), kv_tasks = s.batch * s.kv_heads;
  check_tensor("attention_backward", "lse", a.lse, DType::f32, s.batch * s.queries, s.heads);
  check_tensor("attention_backward", "dy", a.dy, a.q.dtype, a.q.rows(), a.q.cols());
  check_tensor("attention_backward", "dq", a.dq, a.q.dtype, a.q.rows(), a.q.cols());
  check_tensor("attention_backward", "dk", a.dk, a.q.dtype, a.k.rows(), a.k.cols());
  check_tensor("attention_backward", "dv", a.dv, a.q.dtype, a.k.rows(), a.k.cols());

  ArenaScope scope(ctx.arena);
  AttentionBackwardKernel kernel{a};
  // Five tile products in one pass, seven in two; but one pass has only kv_tasks pieces of work.
  kernel.one_pass = 5 * ((kv_tasks + threads - 1) / threads) * threads <= 7 * kv_tasks;
  const int64_t key_capacity = kernel.one_pass ? attention_padded(s.keys, kAttentionKeys) : kAttentionKeys;
  const int64_t words = attention_backward_layout(s.head_dim, depth(ctx, a.q.dtype), key_capacity).total;
  kernel.delta = ctx.arena.allocate("attention delta", DType::f32, {kv_tasks, s.queries * (s.heads / s.kv_heads)});
  kernel.workspace = allocate_tiles(ctx, threads, words);
  const double queries = static_cast<double>(a.q.bytes()), keys = static_cast<double>(a.k.bytes());
  launch(ctx, "attention_backward", attention_backward_kernels, kernel,
         {.flops = 10 * static_cast<double>(s.head_dim) * visible_pairs(s),
          .bytes_read = 3 * queries + 2 * keys,
          .bytes_written = queries + 2 * keys});
}

}  // namespace yoke
