// What the table's finite differences cannot show: gradients of large shapes, beside their closed form; the same bits
// for every number of threads; NaN that arrives.
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

/// Everything that a forward and a backward read and write.
struct Tensors {
  TensorView q, k, v, begin, dy, y, lse, dq, dk, dv;
};

void run(Context& ctx, const AttentionShape& s, const Tensors& t) {
  attention_forward(ctx, {.shape = s, .q = t.q, .k = t.k, .v = t.v, .key_begin = t.begin, .y = t.y, .lse = t.lse});
  attention_backward(ctx, {.shape = s,
                           .q = t.q,
                           .k = t.k,
                           .v = t.v,
                           .key_begin = t.begin,
                           .y = t.y,
                           .lse = t.lse,
                           .dy = t.dy,
                           .dq = t.dq,
                           .dk = t.dk,
                           .dv = t.dv});
}

/// Inputs from the case's views, outputs from the arena.
Tensors allocate(Context& ctx, const AttentionShape& s, Views& v) {
  Tensors t{.q = v["q"], .k = v["k"], .v = v["v"], .begin = v["begin"], .dy = v["dy"]};
  t.y = ctx.arena.allocate("y", t.q.dtype, t.q.shape);
  t.lse = ctx.arena.allocate("lse", DType::f32, {t.q.rows(), s.heads});
  t.dq = ctx.arena.allocate("dq", t.q.dtype, t.q.shape);
  t.dk = ctx.arena.allocate("dk", t.k.dtype, t.k.shape);
  t.dv = ctx.arena.allocate("dv", t.k.dtype, t.k.shape);
  return t;
}

OpCase make(DType dtype, const char* name, const AttentionShape& s, int64_t document) {
  OpCase c;
  c.name = fmt::format("attention/{}/{}x{}x{}/{}over{}x{}/{}", name_of(dtype), s.batch, s.queries, s.keys, s.heads,
                       s.kv_heads, s.head_dim, name);
  const Shape of_queries{s.batch * s.queries, s.heads * s.head_dim}, of_keys{s.batch * s.keys, s.kv_heads * s.head_dim};
  c.inputs = {{.name = "q", .dtype = dtype, .shape = of_queries},
              {.name = "k", .dtype = dtype, .shape = of_keys},
              {.name = "v", .dtype = dtype, .shape = of_keys},
              {.name = "dy", .dtype = dtype, .shape = of_queries},
              {.name = "begin", .dtype = DType::i32, .shape = {s.batch * s.queries}, .value = [=](int64_t i) {
                 return i % s.queries + s.query_offset >= document ? static_cast<double>(document) : 0.0;
               }}};
  return c;
}

/// The closed form in float64, one query at a time.
void closed_form(const AttentionShape& s, const Arrays& in, Arrays& out) {
  const auto &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &dy = in.at("dy");
  std::vector<double> p(s.keys), dp(s.keys);
  for (auto& [name, array] : out) std::fill(array.begin(), array.end(), 0.0);
  for (int64_t row = 0; row < s.batch * s.queries * s.heads; ++row) {
    const int64_t token = row / s.heads, head = row % s.heads / (s.heads / s.kv_heads), at = row * s.head_dim;
    const int64_t last = s.query_offset + token % s.queries, window = s.window > 0 ? s.window : s.keys;
    const int64_t first = std::max({int64_t{0}, last - window + 1, static_cast<int64_t>(in.at("begin")[token])});
    const auto key = [&](int64_t j) { return ((token / s.queries * s.keys + j) * s.kv_heads + head) * s.head_dim; };
    double sum = 0, delta = 0;
    for (int64_t j = first; j <= last; ++j) {
      double dot = 0;
      dp[j] = 0;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        dot += q[at + d] * k[key(j) + d];
        dp[j] += dy[at + d] * v[key(j) + d];
      }
      sum += p[j] = std::exp(dot * s.scale);
    }
    for (int64_t j = first; j <= last; ++j) delta += (p[j] /= sum) * dp[j];
    for (int64_t j = first; j <= last; ++j) {
      const double ds = p[j] * (dp[j] - delta) * s.scale;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        out["dq"][at + d] += ds * k[key(j) + d];
        out["dk"][key(j) + d] += ds * q[at + d];
        out["dv"][key(j) + d] += p[j] * dy[at + d];
      }
    }
  }
}

OpCase gradient_row(DType dtype, const AttentionShape& s, int64_t document) {
  OpCase c = make(dtype, "closed-form", s, document);
  // The gradients of q and k also carry the rounding of y (in its product with dy) and of the probabilities' gradients.
  if (dtype != DType::f32) c.tolerance = 2;
  for (const char* name : {"q", "k", "v"}) {
    const TensorSpec& input = c.inputs[c.outputs.size()];
    c.outputs.push_back({.name = std::string("d") + name, .dtype = dtype, .shape = input.shape});
  }
  c.reference = [=](const Arrays& in, Arrays& out) { closed_form(s, in, out); };
  c.forward = [=](Context& ctx, Views& v) {
    ArenaScope scope(ctx.arena);
    Tensors t = allocate(ctx, s, v);
    t.dq = v["dq"];
    t.dk = v["dk"];
    t.dv = v["dv"];
    run(ctx, s, t);
  };
  return c;
}

void expect_no(OpCase& c, const char* what) {
  c.outputs = {{.name = what, .dtype = DType::i32, .shape = {1}}};
  c.reference = [=](const Arrays&, Arrays& out) { out[what] = {0}; };
}

/// Counts elements of the outputs that differ between numbers of threads, which change how the work is cut.
OpCase threads_row(DType dtype, const AttentionShape& s) {
  OpCase c = make(dtype, "threads", s, s.keys / 3);
  expect_no(c, "differences");
  c.forward = [=](Context& ctx, Views& v) {
    ArenaScope scope(ctx.arena);
    const Tensors one = allocate(ctx, s, v), many = allocate(ctx, s, v);
    int32_t differences = 0;
    for (const int threads : {1, 2, 3, 16}) {
      const Device cpu = Device::cpu(threads, ctx.device.isa());
      const Device device = ctx.device.is_dry() ? Device::dry(cpu) : cpu;
      Context cut{device, ctx.stream, ctx.arena};
      run(cut, s, threads == 1 ? one : many);
      if (threads == 1 || device.is_dry()) continue;
      for (const auto of : {&Tensors::y, &Tensors::lse, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
        differences += std::memcmp((one.*of).data, (many.*of).data, (one.*of).bytes()) != 0;
      }
    }
    if (!ctx.device.is_dry()) *v["differences"].as<int32_t>() = differences;
  };
  return c;
}

/// Counts numbers where NaN belongs, and NaN where no input of it is visible, when element 0 of one query or key is
/// NaN.
OpCase nan_row(DType dtype, const AttentionShape& s, const char* of) {
  OpCase c = make(dtype, (std::string("nan-") + of).c_str(), s, 0);
  expect_no(c, "wrong");
  const bool query = std::string_view(of) == "q";
  c.forward = [=](Context& ctx, Views& v) {
    ArenaScope scope(ctx.arena);
    Tensors t = allocate(ctx, s, v);
    TensorView& hit = query ? t.q : t.k;
    const TensorView from = hit;
    hit = ctx.arena.allocate("copy", dtype, from.shape);
    const int64_t at = from.rows() / 2;
    if (!ctx.device.is_dry()) {
      std::memcpy(hit.data, from.data, from.bytes());
      std::memset(hit.as<char>() + static_cast<size_t>(at * hit.row_stride) * size_of(dtype), 0xFF, size_of(dtype));
    }
    run(ctx, s, t);
    if (ctx.device.is_dry()) return;
    int32_t wrong = 0;
    for (int64_t i = 0; i < t.lse.elements(); ++i) {
      const bool expected = query ? i == at : i >= at;
      wrong += std::isnan(t.lse.as<float>()[i]) != expected;
    }
    *v["wrong"].as<int32_t>() = wrong;
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionShape plain{1, 200, 200, 2, 2, 64, 0, 0, 0.125f}, group{2, 130, 130, 4, 2, 64, 0, 0, 0.125f};
    const AttentionShape window{1, 300, 300, 2, 1, 128, 0, 90, 0.0884f}, chunk{1, 77, 210, 3, 1, 80, 133, 0, 0.1118f};
    const AttentionShape small{1, 150, 150, 2, 1, 20, 0, 70, 0.2236f}, single{1, 150, 150, 1, 1, 32, 0, 0, 0.1768f};
    all.push_back(gradient_row(dtype, plain, 0));
    all.push_back(gradient_row(dtype, group, 70));
    all.push_back(gradient_row(dtype, window, 111));
    all.push_back(gradient_row(dtype, chunk, 40));
    all.push_back(threads_row(dtype, plain));
    all.push_back(threads_row(dtype, small));
    all.push_back(nan_row(dtype, single, "q"));
    all.push_back(nan_row(dtype, single, "k"));
  }
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
