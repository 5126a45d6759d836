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
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - kAttentionKeys;
  YOKE_ASSERT(s.query_offset >= 0 && s.query_offset + s.queries < kMost, "attention: {} queries from {} on", s.queries,
              s.query_offset);
  YOKE_ASSERT(s.key_offset >= 0 && s.key_offset + s.keys < kMost, "attention: {} keys from {} on", s.keys,
              s.key_offset);
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
  check_tensor(op, "y", a.y, a.y.dtype, rows, s.heads * s.head_dim);
  if (!a.lse.absent()) check_tensor(op, "lse", a.lse, DType::f32, rows, s.heads);
}

/// Outputs that sum up over parts may be wider than what they are computed from.
void check_wide_tensor(const char* op, const char* name, const TensorView& t, DType dtype, int64_t rows, int64_t cols) {
  check_tensor(op, name, t, t.dtype == DType::f32 ? DType::f32 : dtype, rows, cols);
}

/// Pairs of a query and a key it may see, over all batch rows and heads, as if every row were one document.
double visible_pairs(const AttentionShape& s) {
  // Pairs (p, j) with x <= j <= p: a triangle over all queries, less that over the positions before them.
  const auto from = [&](int64_t x) {
    const auto triangle = [](int64_t n) {
      return n > 0 ? 0.5 * static_cast<double>(n) * static_cast<double>(n + 1) : 0;
    };
    return triangle(s.query_offset + s.queries - x) - triangle(s.query_offset - x);
  };
  const int64_t first = s.key_offset, end = s.key_offset + s.keys;
  double pairs = from(first) - from(end);
  if (s.window > 0) pairs -= from(first + s.window) - from(end + s.window);  // with j <= p - window
  return pairs * static_cast<double>(s.batch * s.heads);
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
  check_wide_tensor("attention_forward", "y", a.y, a.q.dtype, a.q.rows(), a.q.cols());
  YOKE_ASSERT(!a.merge || !a.lse.absent(), "attention_forward: merge without lse");
  ArenaScope scope(ctx.arena);
  AttentionForwardKernel kernel{a, {}};
  const int64_t words = attention_forward_layout(s.head_dim, depth(ctx, a.q.dtype)).total;
  kernel.workspace = allocate_tiles(ctx, ctx.device.threads(), words);
  launch(ctx, "attention_forward", attention_forward_kernels, kernel,
         {.flops = 4 * static_cast<double>(s.head_dim) * visible_pairs(s),
          .bytes_read = static_cast<double>(a.q.bytes() + a.k.bytes() + a.v.bytes() + (a.merge ? a.y.bytes() : 0)),
          .bytes_written = static_cast<double>(a.y.bytes())});
}

void attention_backward(Context& ctx, const AttentionBackward& a) {
  check_tensors("attention_backward", a);
  const AttentionShape& s = a.shape;
  const int64_t threads = ctx.device.threads(), kv_tasks = s.batch * s.kv_heads;
  check_tensor("attention_backward", "lse", a.lse, DType::f32, s.batch * s.queries, s.heads);
  check_tensor("attention_backward", "dy", a.dy, a.q.dtype, a.q.rows(), a.q.cols());
  check_tensor("attention_backward", "y", a.y, a.q.dtype, a.q.rows(), a.q.cols());
  check_wide_tensor("attention_backward", "dq", a.dq, a.q.dtype, a.q.rows(), a.q.cols());
  check_wide_tensor("attention_backward", "dk", a.dk, a.q.dtype, a.k.rows(), a.k.cols());
  check_tensor("attention_backward", "dv", a.dv, a.dk.dtype, a.k.rows(), a.k.cols());

  ArenaScope scope(ctx.arena);
  AttentionBackwardKernel kernel{a};
  // Five tile products in one pass, seven in two; but one pass has only kv_tasks pieces of work.
  kernel.one_pass = 5 * ((kv_tasks + threads - 1) / threads) * threads <= 7 * kv_tasks;
  const int64_t key_capacity = kernel.one_pass ? attention_padded(s.keys, kAttentionKeys) : kAttentionKeys;
  const int64_t words = attention_backward_layout(s.head_dim, depth(ctx, a.q.dtype), key_capacity).total;
  kernel.delta = ctx.arena.allocate("attention delta", DType::f32, {kv_tasks, s.queries * (s.heads / s.kv_heads)});
  kernel.workspace = allocate_tiles(ctx, threads, words);
  const auto bytes = [](const TensorView& t, bool too) { return too ? static_cast<double>(t.bytes()) : 0; };
  const double queries = static_cast<double>(a.q.bytes()), keys = static_cast<double>(a.k.bytes());
  launch(ctx, "attention_backward", attention_backward_kernels, kernel,
         {.flops = 10 * static_cast<double>(s.head_dim) * visible_pairs(s),
          .bytes_read = 3 * queries + 2 * keys + bytes(a.dq, a.accumulate_queries) + 2 * bytes(a.dk, a.accumulate_keys),
          .bytes_written = bytes(a.dq, true) + 2 * bytes(a.dk, true)});
}

}  // namespace yoke
