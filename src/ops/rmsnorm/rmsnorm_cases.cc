#include <cmath>

#include "ops/op_case.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace yoke {
namespace {

constexpr double kEpsilon = 1e-5;

OpCase row(DType dtype, int64_t tokens, int64_t cols, bool residual, int64_t padding = 0, int64_t groups = 1,
           bool bench = false, const char* dx_may_be = "dy") {
  const int64_t rows = tokens * groups;
  const Shape shape{tokens, groups * cols};
  OpCase c;
  c.name = fmt::format("rmsnorm/{}/{}x{}x{}{}{}", name_of(dtype), tokens, groups, cols, residual ? "/residual" : "",
                       padding ? "/strided" : "");
  c.bench = bench;
  c.inputs = {{.name = "x", .dtype = dtype, .shape = shape, .row_padding = padding},
              {.name = "weight", .dtype = dtype, .shape = {cols}, .low = 0.5, .high = 1.5}};
  c.outputs = {{.name = "y", .dtype = dtype, .shape = shape},
               {.name = "rstd", .dtype = DType::f32, .shape = {rows}, .accuracy = dtype}};
  if (residual) {
    c.inputs.push_back({.name = "delta", .dtype = dtype, .shape = shape});
    c.outputs.push_back({.name = "sum", .dtype = dtype, .shape = shape, .row_padding = padding});
    c.in_place = {{"sum", "x"}};
    c.tolerance = dtype == DType::f32 ? 1 : 2;  // the sum is rounded once before it is normalised
  } else {
    c.in_place = {{"y", "x"}};
  }
  c.reference = [=](const Arrays& in, Arrays& out) {
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> x(cols);
      double square = 0;
      for (int64_t i = 0; i < cols; ++i) {
        x[i] = in.at("x")[r * cols + i] + (residual ? in.at("delta")[r * cols + i] : 0.0);
        square += x[i] * x[i];
      }
      const double rstd = 1 / std::sqrt(square / static_cast<double>(cols) + kEpsilon);
      out["rstd"][r] = rstd;
      for (int64_t i = 0; i < cols; ++i) {
        out["y"][r * cols + i] = x[i] * rstd * in.at("weight")[i];
        if (residual) out["sum"][r * cols + i] = x[i];
      }
    }
  };
  c.forward = [=](Context& ctx, Views& v) {
    rms_norm_forward(ctx, {.x = v["x"],
                           .delta = residual ? v["delta"] : TensorView{},
                           .weight = v["weight"],
                           .residual_out = residual ? v["sum"] : TensorView{},
                           .y = v["y"],
                           .rstd = v["rstd"],
                           .epsilon = static_cast<float>(kEpsilon),
                           .groups = groups});
  };
  c.seeds = {"y"};
  if (residual) c.seeds.push_back("sum");
  c.gradients = {{.of = "x", .dtype = dtype, .may_alias = dx_may_be},
                 {.of = "weight", .accumulates = true, .accuracy = dtype}};
  c.backward = [=](Context& ctx, Views& v, bool accumulate) {
    rms_norm_backward(ctx, {.dy = v["dy"],
                            .x = residual ? v["sum"] : v["x"],
                            .weight = v["weight"],
                            .rstd = v["rstd"],
                            .residual_gradient = residual ? v["dsum"] : TensorView{},
                            .dx = v["dx"],
                            .dweight = v["dweight"],
                            .accumulate = accumulate,
                            .groups = groups});
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row(dtype, 1, 16, false));
    all.push_back(row(dtype, 5, 96, false));
    all.push_back(row(dtype, 3, 97, true));
    all.push_back(row(dtype, 7, 33, false, 5));
    all.push_back(row(dtype, 4, 64, true, 64));
    all.push_back(row(dtype, 3, 32, false, 64, 4));
    all.push_back(row(dtype, 6, 40, true, 0, 1, false, "sum"));
  }
  all.push_back(row(DType::bf16, 4096, 768, true, 0, 1, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
