#include "ops/matmul/matmul.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

struct Options {
  bool transpose_a = false, transpose_b = false, bias = false, strided = false, bench = false;
  DType c = DType::f32;
};

/// Forward: c = op(a) op(b) + bias. Backward: the two products that a linear layer's gradients are.
OpCase product(DType dtype, int64_t m, int64_t n, int64_t k, Options o) {
  OpCase c;
  c.name = fmt::format("matmul/{}{}/{}x{}x{}{}{}{}{}", name_of(dtype), o.c == dtype ? "" : "_to_fp32", m, n, k,
                       o.transpose_a ? "/ta" : "", o.transpose_b ? "/tb" : "", o.bias ? "/bias" : "",
                       o.strided ? "/strided" : "");
  c.bench = o.bench;
  const int64_t padding = o.strided ? 8 : 0;
  c.inputs = {
      {.name = "a", .dtype = dtype, .shape = o.transpose_a ? Shape{k, m} : Shape{m, k}, .row_padding = padding},
      {.name = "b", .dtype = dtype, .shape = o.transpose_b ? Shape{n, k} : Shape{k, n}, .row_padding = padding}};
  if (o.bias) c.inputs.push_back({.name = "bias", .dtype = dtype, .shape = {n}});
  c.outputs = {{.name = "c", .dtype = o.c, .shape = {m, n}, .row_padding = padding}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    const auto& a = in.at("a");
    const auto& b = in.at("b");
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = o.bias ? in.at("bias")[j] : 0;
        for (int64_t x = 0; x < k; ++x) {
          sum += a[o.transpose_a ? x * m + i : i * k + x] * b[o.transpose_b ? j * k + x : x * n + j];
        }
        out["c"][i * n + j] = sum;
      }
    }
  };
  c.forward = [=](Context& ctx, Views& v) {
    matmul(ctx, {.a = v["a"],
                 .b = v["b"],
                 .c = v["c"],
                 .bias = o.bias ? v["bias"] : TensorView{},
                 .transpose_a = o.transpose_a,
                 .transpose_b = o.transpose_b});
  };
  if (o.transpose_a || o.c != dtype) return c;
  // y = x W^T or x W: dx in the element type, dW accumulated in fp32.
  c.seeds = {"c"};
  c.gradients = {{.of = "a", .dtype = dtype}, {.of = "b", .dtype = DType::f32, .accumulates = true}};
  c.backward = [=](Context& ctx, Views& v, bool accumulate) {
    matmul(ctx, {.a = v["dc"], .b = v["b"], .c = v["da"], .transpose_b = !o.transpose_b});
    matmul(ctx, {.a = o.transpose_b ? v["dc"] : v["a"],
                 .b = o.transpose_b ? v["a"] : v["dc"],
                 .c = v["db"],
                 .transpose_a = true,
                 .accumulate = accumulate});
  };
  return c;
}

/// c += a b in the element type, checked through its outcome: c starts as `start`.
OpCase accumulating(DType dtype, int64_t m, int64_t n, int64_t k) {
  OpCase c = product(dtype, m, n, k, {.c = dtype});
  c.name += "/accumulate";
  c.inputs.push_back({.name = "start", .dtype = dtype, .shape = {m, n}});
  const auto plain = c.reference;
  c.reference = [=](const Arrays& in, Arrays& out) {
    plain(in, out);
    for (size_t i = 0; i < out["c"].size(); ++i) out["c"][i] += in.at("start")[i];
  };
  c.in_place = {{"c", "start"}};
  c.forward = [](Context& ctx, Views& v) {
    if (v["c"].data != v["start"].data) std::memcpy(v["c"].data, v["start"].data, v["start"].bytes());
    matmul(ctx, {.a = v["a"], .b = v["b"], .c = v["c"], .accumulate = true});
  };
  c.seeds.clear();
  c.gradients.clear();
  c.backward = nullptr;
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(product(dtype, 1, 1, 2, {.c = dtype}));
    all.push_back(product(dtype, 5, 7, 9, {.transpose_b = true, .c = dtype}));
    all.push_back(product(dtype, 1, 40, 24, {.transpose_b = true, .c = dtype}));
    all.push_back(product(dtype, 6, 10, 8, {.transpose_b = true, .bias = true, .c = dtype}));
    all.push_back(product(dtype, 9, 16, 12, {.transpose_b = true, .strided = true, .c = dtype}));
    all.push_back(product(dtype, 17, 6, 10, {.c = dtype}));
    all.push_back(product(dtype, 33, 18, 31, {.transpose_a = true}));
    all.push_back(product(dtype, 70, 130, 65, {.transpose_a = true, .strided = true, .c = dtype}));
    all.push_back(accumulating(dtype, 19, 21, 34));
  }
  for (const DType dtype : {DType::bf16, DType::f32}) {
    all.push_back(product(dtype, 1024, 2304, 768, {.transpose_b = true, .bench = true, .c = dtype}));
    all.push_back(product(dtype, 1024, 32000, 768, {.transpose_b = true, .bench = true, .c = dtype}));
    all.push_back(product(dtype, 2048, 2048, 2048, {.bench = true, .c = dtype}));
    all.push_back(product(dtype, 1, 2304, 768, {.transpose_b = true, .bench = true, .c = dtype}));
  }
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
