// Products through oneDNN's matmul primitive with plain strides: no operand is repacked by hand. A primitive is made
// once a stream and problem; making one costs more than a small product.
#include <omp.h>

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <tuple>

#include "ops/matmul/matmul_kernels.h"

namespace yoke {

namespace {

using dnnl::memory;

struct Problem {
  int64_t m, n, k, stride_a, stride_b, stride_c;
  DType dtype, c_dtype;
  bool transpose_a, transpose_b, accumulate, bias;
  int threads;
  auto operator<=>(const Problem&) const = default;

  explicit Problem(const Matmul& a, int threads)
      : m(a.c.rows()),
        n(a.c.cols()),
        k(a.transpose_a ? a.a.rows() : a.a.cols()),
        stride_a(a.a.row_stride),
        stride_b(a.b.row_stride),
        stride_c(a.c.row_stride),
        dtype(a.a.dtype),
        c_dtype(a.c.dtype),
        transpose_a(a.transpose_a),
        transpose_b(a.transpose_b),
        accumulate(a.accumulate),
        bias(!a.bias.absent()),
        threads(threads) {}
};

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc matrix(int64_t rows, int64_t cols, DType dtype, int64_t stride, bool transposed) {
  return {{rows, cols}, type_of(dtype), transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

struct Prepared {
  dnnl::matmul::primitive_desc description;
  std::optional<dnnl::matmul> primitive{};  // made when it first runs: a dry device never compiles a kernel
};

struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Problem, Prepared> prepared;

  Prepared& get(const Problem& p) {
    omp_set_num_threads(p.threads);  // oneDNN partitions by this number
    if (const auto it = prepared.find(p); it != prepared.end()) return it->second;
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.0f);
      attributes.set_post_ops(ops);
    }
    const memory::desc a = matrix(p.m, p.k, p.dtype, p.stride_a, p.transpose_a);
    const memory::desc b = matrix(p.k, p.n, p.dtype, p.stride_b, p.transpose_b);
    const memory::desc c = matrix(p.m, p.n, p.c_dtype, p.stride_c, false);
    const memory::desc bias = matrix(1, p.n, p.dtype, p.n, false);
    const auto problem = p.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    return prepared.emplace(p, Prepared{{problem, attributes, engine}}).first->second;
  }
};

}  // namespace

size_t matmul_workspace(Context& ctx, const Matmul& a) {
  return ctx.stream.library_state<OneDnn>()
      .get(Problem(a, ctx.device.threads()))
      .description.scratchpad_desc()
      .get_size();
}

namespace library {

void matmul(Context& ctx, const MatmulKernel& a) {
  OneDnn& dnn = ctx.stream.library_state<OneDnn>();
  Prepared& prepared = dnn.get(Problem(a, ctx.device.threads()));
  if (!prepared.primitive) prepared.primitive.emplace(prepared.description);
  const auto& d = prepared.description;
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, memory(d.src_desc(), dnn.engine, a.a.data)},
      {DNNL_ARG_WEIGHTS, memory(d.weights_desc(), dnn.engine, a.b.data)},
      {DNNL_ARG_DST, memory(d.dst_desc(), dnn.engine, a.c.data)},
      {DNNL_ARG_SCRATCHPAD, memory(d.scratchpad_desc(), dnn.engine, a.workspace.data)}};
  if (!a.bias.absent()) arguments.emplace(DNNL_ARG_BIAS, memory(d.bias_desc(), dnn.engine, a.bias.data));
  prepared.primitive->execute(dnn.stream, arguments);
  dnn.stream.wait();
}

}  // namespace library

}  // namespace yoke
