#include <cmath>

#include "base/random.h"
#include "ops/attention/attention.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

struct Row {
  AttentionShape shape;
  std::string name{};
  std::vector<int64_t> documents{};  ///< where documents begin, in keys, besides 0
  bool extreme = false;              ///< q and k of small integers, so that large logits are exact in fp32 too
  int64_t padding = 0;               ///< elements between rows of q, k and v, as in a fused matrix
  bool gradient = true;
  bool bench = false;
};

int64_t first_key(const Row& row, int64_t position) {
  int64_t begin = 0;
  for (const int64_t document : row.documents) {
    if (document <= position) begin = document;
  }
  return begin;
}

void reference(const Row& row, const Arrays& in, Arrays& out) {
  const AttentionShape& s = row.shape;
  const auto &q = in.at("q"), &k = in.at("k"), &v = in.at("v");
  std::vector<double> p(s.keys);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t i = 0; i < s.queries; ++i) {
      const int64_t at = s.query_offset + i, from_window = s.window > 0 ? at - s.window + 1 : 0;
      const int64_t from = std::max<int64_t>({0, from_window, static_cast<int64_t>(in.at("begin")[b * s.queries + i])});
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t qi = ((b * s.queries + i) * s.heads + h) * s.head_dim, kh = h / (s.heads / s.kv_heads);
        const auto kj = [&](int64_t j) { return ((b * s.keys + j) * s.kv_heads + kh) * s.head_dim; };
        double largest = -INFINITY, sum = 0;
        for (int64_t j = from; j <= at; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < s.head_dim; ++d) dot += q[qi + d] * k[kj(j) + d];
          p[j] = dot * s.scale;
          largest = std::max(largest, p[j]);
        }
        for (int64_t j = from; j <= at; ++j) sum += p[j] = std::exp(p[j] - largest);
        out["lse"][(b * s.queries + i) * s.heads + h] = largest + std::log(sum);
        double* y = out["y"].data() + qi;
        std::fill_n(y, s.head_dim, 0.0);
        for (int64_t j = from; j <= at; ++j) {
          for (int64_t d = 0; d < s.head_dim; ++d) y[d] += p[j] / sum * v[kj(j) + d];
        }
      }
    }
  }
}

OpCase make(DType dtype, Row row) {
  AttentionShape& s = row.shape;
  if (s.keys == 0) s.keys = s.queries;
  if (s.scale == 0) s.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  OpCase c;
  c.name = fmt::format("attention/{}/{}x{}x{}/{}over{}x{}", name_of(dtype), s.batch, s.queries, s.keys, s.heads,
                       s.kv_heads, s.head_dim);
  if (!row.name.empty()) c.name += "/" + row.name;
  c.bench = row.bench;
  const Shape of_queries{s.batch * s.queries, s.heads * s.head_dim}, of_keys{s.batch * s.keys, s.kv_heads * s.head_dim};
  std::function<double(int64_t)> value{};
  if (row.extreme)
    value = [](int64_t i) { return static_cast<double>(philox({static_cast<uint32_t>(i)}, {})[0] % 11) - 5; };
  c.inputs = {{.name = "q", .dtype = dtype, .shape = of_queries, .value = value},
              {.name = "k", .dtype = dtype, .shape = of_keys, .value = value},
              {.name = "v", .dtype = dtype, .shape = of_keys},
              {.name = "begin", .dtype = DType::i32, .shape = {s.batch * s.queries}, .value = [=](int64_t i) {
                 return static_cast<double>(first_key(row, i % s.queries + s.query_offset));
               }}};
  for (size_t i = 0; i < 3; ++i) c.inputs[i].row_padding = row.padding;
  c.outputs = {{.name = "y", .dtype = dtype, .shape = of_queries},
               {.name = "lse", .dtype = DType::f32, .shape = {s.batch * s.queries, s.heads}}};
  c.reference = [=](const Arrays& in, Arrays& out) { reference(row, in, out); };
  c.forward = [=](Context& ctx, Views& v) {
    attention_forward(
        ctx,
        {.shape = s, .q = v["q"], .k = v["k"], .v = v["v"], .key_begin = v["begin"], .y = v["y"], .lse = v["lse"]});
  };
  if (!row.gradient) return c;
  // The gradients of q and k also carry the rounding of y (in its product with dy) and of the probabilities' gradients.
  if (dtype != DType::f32) c.tolerance = 2;
  c.seeds = {"y"};
  c.gradients = {{.of = "q", .dtype = dtype}, {.of = "k", .dtype = dtype}, {.of = "v", .dtype = dtype}};
  c.backward = [=](Context& ctx, Views& v, bool) {
    attention_backward(ctx, {.shape = s,
                             .q = v["q"],
                             .k = v["k"],
                             .v = v["v"],
                             .key_begin = v["begin"],
                             .y = v["y"],
                             .lse = v["lse"],
                             .dy = v["dy"],
                             .dq = v["dq"],
                             .dk = v["dk"],
                             .dv = v["dv"]});
  };
  return c;
}

AttentionShape shape(int64_t batch, int64_t queries, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {.batch = batch, .queries = queries, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
}

AttentionShape with_window(AttentionShape s, int64_t window) {
  s.window = window;
  return s;
}

AttentionShape with_scale(AttentionShape s, float scale) {
  s.scale = scale;
  return s;
}

/// The last `queries` of `keys` positions.
AttentionShape with_keys(AttentionShape s, int64_t keys) {
  s.keys = keys;
  s.query_offset = keys - s.queries;
  return s;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto add = [&](Row row) {
      all.push_back(make(dtype, row));
      if (dtype == DType::f32 || !row.gradient) return;
      row.gradient = false;  // once more at the forward's own tolerance
      row.name += row.name.empty() ? "forward" : "-forward";
      all.push_back(make(dtype, row));
    };
    add({.shape = shape(1, 1, 1, 1, 2), .gradient = false});  // the gradient is zero: nothing to be relative to
    add({.shape = shape(1, 7, 2, 2, 6)});                     // one pass: a head for each thread
    add({.shape = shape(1, 20, 4, 1, 6), .name = "documents", .documents = {3, 17}});  // two passes
    add({.shape = shape(2, 19, 4, 2, 6), .name = "strided", .documents = {8}, .padding = 24});
    add({.shape = with_window(shape(1, 20, 2, 1, 6), 5), .name = "window"});
    add({.shape = with_window(shape(1, 20, 2, 2, 6), 5), .name = "window-documents", .documents = {6, 13}});
    // More than a tile in both directions, and less than a whole one at the end.
    add({.shape = shape(1, 99, 1, 1, 2), .name = "tiles"});
    add({.shape = with_window(shape(1, 77, 1, 1, 2), 40), .name = "tiles-window-documents", .documents = {36, 61}});
    add({.shape = shape(1, 47, 3, 1, 2), .name = "tiles-group", .documents = {9}});
    add({.shape = with_keys(shape(2, 1, 4, 2, 6), 75), .name = "decode"});
    add({.shape = with_keys(shape(1, 9, 2, 1, 4), 83), .name = "chunk"});
    add({.shape = shape(1, 4, 2, 1, 32)});
    add({.shape = shape(1, 4, 2, 2, 80)});
    // Forward only: finite differences of these would take minutes. Their kind of gradient is checked by its closed
    // form.
    add({.shape = shape(2, 130, 4, 2, 64), .documents = {40, 64, 100}, .gradient = false});
    add({.shape = with_window(shape(1, 300, 2, 2, 64), 90), .name = "window", .gradient = false});
    add({.shape = with_keys(shape(1, 70, 2, 1, 96), 301), .name = "chunk", .gradient = false});
    add({.shape = with_keys(shape(2, 1, 8, 2, 128), 517), .name = "decode", .gradient = false});
    add({.shape = shape(1, 67, 2, 2, 256), .gradient = false});
    // Logits beyond 100: exponentials without their largest taken off would overflow.
    add({.shape = with_scale(shape(1, 150, 2, 2, 64), 0.5f), .name = "extreme", .extreme = true, .gradient = false});
  }
  const auto bench = [&](DType dtype, const AttentionShape& s) {
    all.push_back(make(dtype, {.shape = s, .bench = true}));
  };
  bench(DType::bf16, shape(2, 512, 12, 12, 64));
  bench(DType::bf16, shape(1, 2048, 12, 12, 64));
  bench(DType::f32, shape(2, 512, 12, 12, 64));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
