// Attention in parts, as ranks that share a sequence compute it: chunks of queries against chunks of keys, results
// merged, gradients added up, beside one softmax over all keys in float64.
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

/// Chunk i of a sequence holds positions i * length .. (i + 1) * length - 1. Tensors hold chunk after chunk, each for
/// all batch rows.
struct Parts {
  std::string name;
  AttentionShape shape;  ///< batch, heads, head_dim, window
  int64_t length = 0;
  std::vector<int64_t> query_chunks{}, key_chunks{};  ///< in the order of computation
  std::vector<int64_t> documents{};                   ///< positions where they begin, besides 0
  bool wide = true;                                   ///< y and gradients are fp32 whatever the inputs are

  int64_t query_rows() const { return static_cast<int64_t>(query_chunks.size()) * shape.batch * length; }
  int64_t key_rows() const { return static_cast<int64_t>(key_chunks.size()) * shape.batch * length; }
  int64_t position(int64_t query_row) const {
    return query_chunks[static_cast<size_t>(query_row / length / shape.batch)] * length + query_row % length;
  }
  int64_t document(int64_t position) const {
    int64_t begin = 0;
    for (const int64_t at : documents) begin = at <= position ? at : begin;
    return begin;
  }
};

/// Rows of the keys that a row of queries sees.
std::vector<int64_t> visible(const Parts& parts, int64_t query_row) {
  const AttentionShape& s = parts.shape;
  const int64_t at = parts.position(query_row), batch = query_row / parts.length % s.batch;
  const int64_t from = std::max(parts.document(at), s.window > 0 ? at - s.window + 1 : 0);
  std::vector<int64_t> rows;
  for (size_t c = 0; c < parts.key_chunks.size(); ++c) {
    for (int64_t i = 0; i < parts.length; ++i) {
      const int64_t position = parts.key_chunks[c] * parts.length + i;
      if (from <= position && position <= at)
        rows.push_back((static_cast<int64_t>(c) * s.batch + batch) * parts.length + i);
    }
  }
  return rows;
}

void reference(const Parts& parts, const Arrays& in, Arrays& out) {
  const AttentionShape& s = parts.shape;
  const auto &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &dy = in.at("dy");
  for (auto& [name, array] : out) std::fill(array.begin(), array.end(), 0.0);
  for (int64_t row = 0; row < parts.query_rows(); ++row) {
    const std::vector<int64_t> keys = visible(parts, row);
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t qi = (row * s.heads + h) * s.head_dim;
      const auto key = [&](int64_t j) { return (j * s.kv_heads + h / (s.heads / s.kv_heads)) * s.head_dim; };
      const auto dot = [&](const std::vector<double>& a, const std::vector<double>& b, int64_t j) {
        double sum = 0;
        for (int64_t d = 0; d < s.head_dim; ++d) sum += a[qi + d] * b[key(j) + d];
        return sum;
      };
      double sum = 0, delta = 0;
      for (const int64_t j : keys) sum += std::exp(dot(q, k, j) * s.scale);
      out["lse"][row * s.heads + h] = std::log(sum);
      for (const int64_t j : keys) delta += std::exp(dot(q, k, j) * s.scale) / sum * dot(dy, v, j);
      for (const int64_t j : keys) {
        const double p = std::exp(dot(q, k, j) * s.scale) / sum, ds = p * (dot(dy, v, j) - delta) * s.scale;
        for (int64_t d = 0; d < s.head_dim; ++d) {
          out["y"][qi + d] += p * v[key(j) + d];
          out["dq"][qi + d] += ds * k[key(j) + d];
          out["dk"][key(j) + d] += ds * q[qi + d];
          out["dv"][key(j) + d] += p * dy[qi + d];
        }
      }
    }
  }
}

/// Calls use(shape, first row of the queries, first row of the keys, no keys before, no queries before) for every pair
/// of chunks, wholly masked ones too.
template <class Use>
void for_pairs(const Parts& parts, const Use& use) {
  AttentionShape s = parts.shape;
  s.queries = s.keys = parts.length;
  for (size_t i = 0; i < parts.query_chunks.size(); ++i) {
    for (size_t j = 0; j < parts.key_chunks.size(); ++j) {
      s.query_offset = parts.query_chunks[i] * parts.length;
      s.key_offset = parts.key_chunks[j] * parts.length;
      const int64_t rows = s.batch * parts.length;
      use(s, static_cast<int64_t>(i) * rows, static_cast<int64_t>(j) * rows, j == 0, i == 0);
    }
  }
}

void run(Context& ctx, const Parts& parts, Views& v) {
  const int64_t count = parts.shape.batch * parts.length;
  const TensorView begin = reshape(v["begin"], {parts.query_rows(), 1});
  for_pairs(parts, [&](const AttentionShape& s, int64_t query, int64_t key, bool first, bool) {
    attention_forward(ctx, {.shape = s,
                            .q = rows(v["q"], query, count),
                            .k = rows(v["k"], key, count),
                            .v = rows(v["v"], key, count),
                            .key_begin = reshape(rows(begin, query, count), {count}),
                            .y = rows(v["y"], query, count),
                            .lse = rows(v["lse"], query, count),
                            .merge = !first});
  });
  ArenaScope scope(ctx.arena);
  const TensorView y = ctx.arena.allocate("rounded y", v["q"].dtype, v["y"].shape);
  convert(ctx, {.x = v["y"], .y = y});
  for_pairs(parts, [&](const AttentionShape& s, int64_t query, int64_t key, bool no_keys, bool no_queries) {
    attention_backward(ctx, {.shape = s,
                             .q = rows(v["q"], query, count),
                             .k = rows(v["k"], key, count),
                             .v = rows(v["v"], key, count),
                             .key_begin = reshape(rows(begin, query, count), {count}),
                             .y = rows(y, query, count),
                             .lse = rows(v["lse"], query, count),
                             .dy = rows(v["dy"], query, count),
                             .dq = rows(v["dq"], query, count),
                             .dk = rows(v["dk"], key, count),
                             .dv = rows(v["dv"], key, count),
                             .accumulate_queries = !no_keys,
                             .accumulate_keys = !no_queries});
  });
}

OpCase make(DType dtype, Parts parts) {
  AttentionShape& s = parts.shape;
  s.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  OpCase c;
  c.name = fmt::format("attention-parts/{}/{}x{}/{}over{}x{}/{}{}", name_of(dtype), s.batch, parts.length, s.heads,
                       s.kv_heads, s.head_dim, parts.name, parts.wide ? "" : "-narrow");
  const Shape of_queries{parts.query_rows(), s.heads * s.head_dim}, of_keys{parts.key_rows(), s.kv_heads * s.head_dim};
  c.inputs = {{.name = "q", .dtype = dtype, .shape = of_queries},
              {.name = "k", .dtype = dtype, .shape = of_keys},
              {.name = "v", .dtype = dtype, .shape = of_keys},
              {.name = "dy", .dtype = dtype, .shape = of_queries},
              {.name = "begin", .dtype = DType::i32, .shape = {parts.query_rows()}, .value = [=](int64_t i) {
                 return static_cast<double>(parts.document(parts.position(i)));
               }}};
  const DType out = parts.wide ? DType::f32 : dtype;
  c.outputs = {{.name = "y", .dtype = out, .shape = of_queries, .row_padding = 3, .accuracy = dtype},
               {.name = "lse", .dtype = DType::f32, .shape = {parts.query_rows(), s.heads}},
               {.name = "dq", .dtype = out, .shape = of_queries, .row_padding = 5, .accuracy = dtype},
               {.name = "dk", .dtype = out, .shape = of_keys, .row_padding = 7, .accuracy = dtype},
               {.name = "dv", .dtype = out, .shape = of_keys, .row_padding = 1, .accuracy = dtype}};
  // As for the whole: rounding of y and of the probabilities' gradients. A narrow sum is rounded with every part.
  if (dtype != DType::f32) c.tolerance = parts.wide ? 2 : 1 + static_cast<double>(parts.key_chunks.size());
  c.reference = [=](const Arrays& in, Arrays& out) { reference(parts, in, out); };
  c.forward = [=](Context& ctx, Views& v) { run(ctx, parts, v); };
  return c;
}

AttentionShape shape(int64_t batch, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0) {
  return {.batch = batch, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .window = window};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto add = [&](const Parts& parts) { all.push_back(make(dtype, parts)); };
    // What two ranks have in the first round and in the second.
    add({"own", shape(2, 4, 2, 8), 9, {0, 3}, {0, 3}});
    add({"others", shape(2, 4, 2, 8), 9, {1, 2}, {3, 0, 2, 1}});
    add({"narrow", shape(1, 2, 2, 16), 20, {0, 1}, {1, 0}, {7}, false});
    add({"nothing", shape(2, 2, 1, 4), 5, {0, 1}, {3, 2}});
    add({"documents", shape(2, 2, 1, 6), 11, {0, 1, 2, 3}, {3, 2, 1, 0}, {4, 11, 30, 33, 35}});
    // Of the first queries some see keys of the first part, of the last none do.
    add({"window", shape(1, 2, 2, 6, 7), 16, {1, 2}, {0, 1, 2}});
    add({"wide-window", shape(1, 2, 2, 6, 37), 16, {3, 2}, {2, 0, 3, 1}, {20}});
    // More than a tile in both directions.
    add({"tiles", shape(1, 2, 2, 64), 130, {1, 0}, {1, 0}, {64, 200}});
    add({"tiles-group", shape(2, 6, 2, 32), 67, {0, 3}, {0, 3, 2, 1}, {40, 134, 220}});
    add({"tiles-window", shape(1, 4, 1, 32, 90), 70, {0, 1, 2, 3}, {1, 3, 0, 2}, {100}});
  }
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
