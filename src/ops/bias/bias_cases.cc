#include "ops/bias/bias.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

/// The operation that it differentiates, y = x + bias, is part of matmul: here only the reference knows it.
OpCase row(DType dtype, int64_t rows, int64_t cols, bool bench = false) {
  OpCase c;
  c.name = fmt::format("bias/{}/{}x{}", name_of(dtype), rows, cols);
  c.bench = bench;
  c.inputs = {{.name = "bias", .dtype = dtype, .shape = {cols}}};
  c.outputs = {{.name = "y", .dtype = dtype, .shape = {rows, cols}}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    for (int64_t i = 0; i < rows * cols; ++i) out["y"][i] = in.at("bias")[i % cols];
  };
  c.seeds = {"y"};
  c.gradients = {{.of = "bias", .accumulates = true}};
  c.backward = [](Context& ctx, Views& v, bool accumulate) {
    bias_backward(ctx, {.dy = v["dy"], .dbias = v["dbias"], .accumulate = accumulate});
  };
  return c;
}

/// dy as columns of a wider matrix, as the gradient of a fused qkv is.
OpCase strided(DType dtype, int64_t rows, int64_t cols, int64_t padding) {
  OpCase c;
  c.name = fmt::format("bias/{}/{}x{}/strided", name_of(dtype), rows, cols);
  c.inputs = {{.name = "dy", .dtype = dtype, .shape = {rows, cols}, .row_padding = padding}};
  c.outputs = {{.name = "dbias", .shape = {cols}}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    for (int64_t i = 0; i < rows * cols; ++i) out["dbias"][i % cols] += in.at("dy")[i];
  };
  c.forward = [](Context& ctx, Views& v) { bias_backward(ctx, {.dy = v["dy"], .dbias = v["dbias"]}); };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row(dtype, 1, 5));
    all.push_back(row(dtype, 37, 33));
    all.push_back(strided(dtype, 100, 517, 11));
  }
  all.push_back(row(DType::bf16, 1024, 2304, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
