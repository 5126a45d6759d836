#include <cmath>

#include "ops/op_case.h"
#include "ops/swiglu/swiglu.h"

namespace yoke {
namespace {

struct Sizes {
  int64_t rows, mlp;
  int64_t padding = 0;
  double range = 4;
};

double silu(double x) { return x / (1 + std::exp(-x)); }

OpCase row(DType dtype, Sizes s, bool bench = false) {
  OpCase c;
  c.name = fmt::format("swiglu/{}/{}x{}/to{}{}", name_of(dtype), s.rows, s.mlp, s.range, s.padding ? "/strided" : "");
  c.bench = bench;
  c.inputs = {{.name = "gate_up",
               .dtype = dtype,
               .shape = {s.rows, 2 * s.mlp},
               .low = -s.range,
               .high = s.range,
               .row_padding = s.padding}};
  c.outputs = {{.name = "y", .dtype = dtype, .shape = {s.rows, s.mlp}, .row_padding = s.padding}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    for (int64_t r = 0; r < s.rows; ++r) {
      const double* gate = in.at("gate_up").data() + r * 2 * s.mlp;
      for (int64_t i = 0; i < s.mlp; ++i) out["y"][r * s.mlp + i] = silu(gate[i]) * gate[s.mlp + i];
    }
  };
  c.forward = [](Context& ctx, Views& v) { swiglu_forward(ctx, {.gate_up = v["gate_up"], .y = v["y"]}); };
  c.seeds = {"y"};
  c.gradients = {{.of = "gate_up", .dtype = dtype}};
  c.backward = [](Context& ctx, Views& v, bool) {
    swiglu_backward(ctx, {.dy = v["dy"], .gate_up = v["gate_up"], .dgate_up = v["dgate_up"]});
  };
  return c;
}

/// The backward writes over gate_up: an output here, filled with what `from` holds first.
OpCase in_place(DType dtype, int64_t rows, int64_t mlp, int64_t padding) {
  OpCase c;
  c.name = fmt::format("swiglu/{}/{}x{}/in_place", name_of(dtype), rows, mlp);
  c.inputs = {{.name = "from", .dtype = dtype, .shape = {rows, 2 * mlp}, .low = -9, .high = 9, .row_padding = padding},
              {.name = "dy", .dtype = dtype, .shape = {rows, mlp}}};
  c.outputs = {{.name = "gate_up", .dtype = dtype, .shape = {rows, 2 * mlp}, .row_padding = padding}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    for (int64_t r = 0; r < rows; ++r) {
      const double* gate = in.at("from").data() + r * 2 * mlp;
      double* dgate = out["gate_up"].data() + r * 2 * mlp;
      for (int64_t i = 0; i < mlp; ++i) {
        const double dy = in.at("dy")[r * mlp + i], g = gate[i], e = std::exp(-g);
        dgate[i] = dy * gate[mlp + i] * (1 + e + g * e) / ((1 + e) * (1 + e));
        dgate[mlp + i] = dy * silu(g);
      }
    }
  };
  c.forward = [](Context& ctx, Views& v) {
    copy_data(v["from"], v["gate_up"]);
    swiglu_backward(ctx, {.dy = v["dy"], .gate_up = v["gate_up"], .dgate_up = v["gate_up"]});
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row(dtype, {.rows = 1, .mlp = 1}));
    all.push_back(row(dtype, {.rows = 3, .mlp = 65}));
    all.push_back(row(dtype, {.rows = 5, .mlp = 48, .padding = 3}));
    all.push_back(row(dtype, {.rows = 2, .mlp = 50, .range = 200}));  // where exp overflows and underflows
    all.push_back(in_place(dtype, 7, 1100, 0));
    all.push_back(in_place(dtype, 4, 33, 8));
  }
  all.push_back(row(DType::bf16, {.rows = 1024, .mlp = 2048}, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
