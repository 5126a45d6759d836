#include <cmath>

#include "ops/op_case.h"
#include "ops/rope/rope.h"

namespace yoke {
namespace {

struct Sizes {
  int64_t tokens, heads, head_dim;
  int64_t padding = 0;
};

/// Positions restart inside the batch, as those of packed documents do.
double position(int64_t t) { return static_cast<double>(t % 7 * 3); }
constexpr int64_t kPositions = 19;

OpCase row(DType dtype, Sizes s, bool bench = false) {
  const int64_t cols = s.heads * s.head_dim, half = s.head_dim / 2;
  OpCase c;
  c.name =
      fmt::format("rope/{}/{}x{}x{}{}", name_of(dtype), s.tokens, s.heads, s.head_dim, s.padding ? "/strided" : "");
  c.bench = bench;
  c.inputs = {{.name = "x", .dtype = dtype, .shape = {s.tokens, cols}, .row_padding = s.padding},
              {.name = "positions", .dtype = DType::i32, .shape = {s.tokens}, .value = position},
              {.name = "table", .shape = {kPositions, s.head_dim}, .value = [=](int64_t i) {
                 const int64_t at = i % s.head_dim;
                 const double frequency =
                     std::pow(10000.0, -static_cast<double>(at % half) / static_cast<double>(half));
                 const double angle = static_cast<double>(i / s.head_dim) * frequency;
                 return at < half ? std::cos(angle) : std::sin(angle);
               }}};
  c.outputs = {{.name = "y", .dtype = dtype, .shape = {s.tokens, cols}, .row_padding = s.padding / 2}};
  c.in_place = {{"y", "x"}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    const auto &x = in.at("x"), &table = in.at("table");
    for (int64_t t = 0; t < s.tokens; ++t) {
      const double* angles = table.data() + static_cast<int64_t>(in.at("positions")[t]) * s.head_dim;
      for (int64_t i = 0; i < cols; ++i) {
        const int64_t at = t * cols + i, j = i % s.head_dim, frequency = j % half;
        const double other = j < half ? -x[at + half] : x[at - half];
        out["y"][at] = x[at] * angles[frequency] + other * angles[half + frequency];
      }
    }
  };
  const auto turn = [=](Context& ctx, Views& v, const char* from, const char* to, bool inverse) {
    rope(ctx, {.x = v[from],
               .positions = v["positions"],
               .table = v["table"],
               .y = v[to],
               .head_dim = s.head_dim,
               .inverse = inverse});
  };
  c.forward = [=](Context& ctx, Views& v) { turn(ctx, v, "x", "y", false); };
  c.seeds = {"y"};
  c.gradients = {{.of = "x", .dtype = dtype, .may_alias = "dy"}};
  c.backward = [=](Context& ctx, Views& v, bool) { turn(ctx, v, "dy", "dx", true); };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row(dtype, {.tokens = 1, .heads = 1, .head_dim = 2}));
    all.push_back(row(dtype, {.tokens = 5, .heads = 3, .head_dim = 64}));
    all.push_back(row(dtype, {.tokens = 9, .heads = 2, .head_dim = 38}));
    all.push_back(row(dtype, {.tokens = 4, .heads = 6, .head_dim = 32, .padding = 64}));  // q and k of a fused qkv
    all.push_back(row(dtype, {.tokens = 2, .heads = 1, .head_dim = 1030}));
  }
  all.push_back(row(DType::bf16, {.tokens = 1024, .heads = 24, .head_dim = 64, .padding = 768}, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
