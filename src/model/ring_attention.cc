#include "model/ring_attention.h"

#include <utility>

#include "ops/elementwise/elementwise.h"

namespace yoke {
namespace {

/// The two directions of one hop around the ring.
struct Hop {
  Pending received, sent;
};

class Ring {
 public:
  Ring(Context& ctx, Communicator& ring, int64_t layer, const AttentionShape& shape)
      : ctx_(ctx), ring_(ring), layer_(layer), shape_(shape), count_(shape.batch / 2 * shape.queries) {
    YOKE_ASSERT(!ring.alone() && shape.batch % 2 == 0 && shape.queries == shape.keys, "ring attention of {} x {}",
                shape.batch, shape.queries);
    shape_.batch /= 2;
  }

  int rounds() const { return ring_.size(); }
  int64_t tokens() const { return 2 * count_; }
  int64_t kv_size() const { return shape_.kv_heads * shape_.head_dim; }

  Hop pass(const TensorView& mine, const TensorView& coming, const char* what) const {
    const int size = ring_.size(), rank = ring_.rank();
    Hop hop;
    hop.received = ring_.start(ctx_, {.kind = CollectiveKind::receive,
                                      .output = coming,
                                      .peer = (rank + size - 1) % size,
                                      .what = what,
                                      .layer = layer_});
    hop.sent = ring_.start(
        ctx_, {.kind = CollectiveKind::send, .input = mine, .peer = (rank + 1) % size, .what = what, .layer = layer_});
    return hop;
  }
  void wait(const Hop& hop) const {
    ring_.wait(ctx_, hop.received);
    ring_.wait(ctx_, hop.sent);
  }

  /// Calls use(shape, query half, key half) for the pairs of chunks of this round some of which is visible, were every
  /// sequence one document. Where documents hide a whole pair, the operation finds no tile to compute.
  template <class Use>
  void for_pairs(int round, const Use& use) const {
    const int size = ring_.size(), rank = ring_.rank();
    const auto queries = ring_chunks(rank, size), keys = ring_chunks((rank + size - round) % size, size);
    AttentionShape s = shape_;
    for (int q = 0; q < 2; ++q) {
      for (int k = 0; k < 2; ++k) {
        s.query_offset = queries[static_cast<size_t>(q)] * s.queries;
        s.key_offset = keys[static_cast<size_t>(k)] * s.keys;
        const int64_t nearest = s.query_offset - (s.key_offset + s.keys - 1);  // of the first query and the last key
        if (s.key_offset > s.query_offset || (s.window > 0 && nearest >= s.window)) continue;
        use(s, q, k);
      }
    }
  }

  TensorView half(const TensorView& t, int which) const { return rows(t, which * count_, count_); }
  TensorView begin_of(const TensorView& key_begin, int which) const {
    return reshape(half(reshape(key_begin, {tokens(), 1}), which), {count_});
  }

 private:
  Context& ctx_;
  Communicator& ring_;
  const int64_t layer_;
  AttentionShape shape_;  // of a pair of chunks
  const int64_t count_;   // tokens of a chunk, all sequences
};

/// Keys and values on their way: what is here, and room for what comes.
struct Travelling {
  TensorView here, next;  // [T, 2 k d]

  Travelling(Context& ctx, const Ring& ring, const TensorView& k, const TensorView& v)
      : here(ctx.arena.allocate("ring keys and values", k.dtype, {ring.tokens(), 2 * ring.kv_size()},
                                MemoryKind::scratch)),
        next(ctx.arena.allocate("ring keys and values", k.dtype, {ring.tokens(), 2 * ring.kv_size()},
                                MemoryKind::scratch)) {
    convert(ctx, {.x = k, .y = columns(here, 0, ring.kv_size())});
    convert(ctx, {.x = v, .y = columns(here, ring.kv_size(), ring.kv_size())});
  }
};

/// The tensor itself, or, where it is narrow, an fp32 one to add up in.
TensorView wide(Context& ctx, const char* name, const TensorView& t, MemoryKind kind) {
  return t.dtype == DType::f32 ? t : ctx.arena.allocate(name, DType::f32, {t.rows(), t.cols()}, kind);
}

}  // namespace

void ring_attention_forward(Context& ctx, Communicator& communicator, int64_t layer, const AttentionForward& a) {
  ArenaScope scope(ctx.arena);
  const Ring ring(ctx, communicator, layer, a.shape);
  const int64_t kv = ring.kv_size();
  const TensorView y = wide(ctx, "ring attention", a.y, MemoryKind::scratch);  // [T, n d]
  Travelling keys(ctx, ring, a.k, a.v);
  bool begun[2] = {false, false};
  for (int round = 0; round < ring.rounds(); ++round) {
    const bool passes = round + 1 < ring.rounds();
    const Hop hop = passes ? ring.pass(keys.here, keys.next, "keys and values") : Hop{};
    ring.for_pairs(round, [&](const AttentionShape& shape, int q, int k) {
      attention_forward(ctx, {.shape = shape,
                              .q = ring.half(a.q, q),
                              .k = ring.half(columns(keys.here, 0, kv), k),
                              .v = ring.half(columns(keys.here, kv, kv), k),
                              .key_begin = ring.begin_of(a.key_begin, q),
                              .y = ring.half(y, q),
                              .lse = ring.half(a.lse, q),
                              .merge = std::exchange(begun[q], true)});
    });
    ring.wait(hop);
    std::swap(keys.here, keys.next);
  }
  if (a.y.dtype != DType::f32) convert(ctx, {.x = y, .y = a.y});
}

void ring_attention_backward(Context& ctx, Communicator& communicator, int64_t layer, const AttentionBackward& a) {
  ArenaScope scope(ctx.arena);
  const Ring ring(ctx, communicator, layer, a.shape);
  const int64_t kv = ring.kv_size(), tokens = ring.tokens();
  constexpr MemoryKind kKind = MemoryKind::activation_gradients;
  const TensorView dq = wide(ctx, "ring query gradient", a.dq, kKind);  // [T, n d]
  const TensorView own_dk = wide(ctx, "ring own key gradient", a.dk, kKind),
                   own_dv = wide(ctx, "ring own value gradient", a.dv, kKind);  // [T, k d]
  // What this rank adds to the gradients of others' keys, what it passes on, and what comes: [T, 2 k d].
  const TensorView share = ctx.arena.allocate("ring gradient share", DType::f32, {tokens, 2 * kv}, kKind),
                   leaving = ctx.arena.allocate("ring gradients", a.k.dtype, {tokens, 2 * kv}, kKind),
                   coming = ctx.arena.allocate("ring gradients", a.k.dtype, {tokens, 2 * kv}, kKind);
  Travelling keys(ctx, ring, a.k, a.v);
  bool begun[2] = {false, false};
  Hop gradients;
  for (int round = 0; round < ring.rounds(); ++round) {
    const bool own = round == 0, passes = round + 1 < ring.rounds();
    const Hop hop = passes ? ring.pass(keys.here, keys.next, "keys and values") : Hop{};
    const TensorView dk = own ? own_dk : columns(share, 0, kv), dv = own ? own_dv : columns(share, kv, kv);
    bool touched[2] = {false, false};
    ring.for_pairs(round, [&](const AttentionShape& shape, int q, int k) {
      attention_backward(ctx, {.shape = shape,
                               .q = ring.half(a.q, q),
                               .k = ring.half(columns(keys.here, 0, kv), k),
                               .v = ring.half(columns(keys.here, kv, kv), k),
                               .key_begin = ring.begin_of(a.key_begin, q),
                               .y = ring.half(a.y, q),
                               .lse = ring.half(a.lse, q),
                               .dy = ring.half(a.dy, q),
                               .dq = ring.half(dq, q),
                               .dk = ring.half(dk, k),
                               .dv = ring.half(dv, k),
                               .accumulate_queries = std::exchange(begun[q], true),
                               .accumulate_keys = std::exchange(touched[k], true)});
    });
    if (!own) {
      for (const int k : {0, 1}) {
        if (!touched[k]) fill(ctx, {.y = ring.half(share, k)});
      }
      if (round == 1) {
        convert(ctx, {.x = share, .y = leaving});
      } else {
        ring.wait(gradients);
        add(ctx, {.a = share, .b = coming, .y = leaving});
      }
      gradients = ring.pass(leaving, coming, "gradients of keys and values");
    }
    ring.wait(hop);
    std::swap(keys.here, keys.next);
  }
  ring.wait(gradients);
  add(ctx, {.a = own_dk, .b = columns(coming, 0, kv), .y = a.dk});
  add(ctx, {.a = own_dv, .b = columns(coming, kv, kv), .y = a.dv});
  if (a.dq.dtype != DType::f32) convert(ctx, {.x = dq, .y = a.dq});
}

}  // namespace yoke
