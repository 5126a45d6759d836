#include "ops/matmul/matmul.h"

#include "ops/check.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul_kernels.h"

namespace yoke {

namespace {

void check(const Matmul& a, int64_t m, int64_t n, int64_t k) {
  check_compute_type("matmul", a.a);
  check_tensor("matmul", "a", a.a, a.a.dtype, a.transpose_a ? k : m, a.transpose_a ? m : k);
  check_tensor("matmul", "b", a.b, a.a.dtype, a.transpose_b ? n : k, a.transpose_b ? k : n);
  check_tensor("matmul", "c", a.c, a.c.dtype == DType::f32 ? DType::f32 : a.a.dtype, m, n);
  if (!a.bias.absent()) check_tensor("matmul", "bias", a.bias, a.a.dtype, 1, n);
}

/// What cuBLAS recommends on Hopper, the most of any GPU: docs.nvidia.com/cuda/cublas, cublasSetWorkspace.
constexpr size_t kGpuWorkspace = size_t{32} << 20;

/// The device multiplies this type in hardware.
bool has_products(const Context& ctx, DType dtype) {
  return ctx.device.models_gpu() || dtype == DType::f32 || (dtype == DType::bf16 && ctx.device.isa() == Isa::avx512);
}

TensorView widened(Context& ctx, const char* name, const TensorView& t) {
  if (t.absent()) return t;
  const TensorView wide = ctx.arena.allocate(name, DType::f32, t.shape);
  convert(ctx, {.x = t, .y = wide});
  return wide;
}

/// The same product through fp32 copies of the operands.
void matmul_through_f32(Context& ctx, const Matmul& a) {
  ArenaScope scope(ctx.arena);
  Matmul wide = a;
  wide.a = widened(ctx, "matmul a in fp32", a.a);
  wide.b = widened(ctx, "matmul b in fp32", a.b);
  wide.bias = widened(ctx, "matmul bias in fp32", a.bias);
  if (a.c.dtype == DType::f32) return matmul(ctx, wide);
  wide.c = ctx.arena.allocate("matmul c in fp32", DType::f32, a.c.shape);
  if (a.accumulate) convert(ctx, {.x = a.c, .y = wide.c});
  matmul(ctx, wide);
  convert(ctx, {.x = wide.c, .y = a.c});
}

}  // namespace

void matmul(Context& ctx, const Matmul& a) {
  const int64_t m = a.c.rows(), n = a.c.cols(), k = a.transpose_a ? a.a.rows() : a.a.cols();
  check(a, m, n, k);
  YOKE_ASSERT(m > 0 && n > 0 && k > 0, "matmul of {} x {} x {}", m, n, k);
  if (!has_products(ctx, a.a.dtype)) return matmul_through_f32(ctx, a);

  ArenaScope scope(ctx.arena);
  MatmulKernel kernel{a, {}};
  const size_t bytes = ctx.device.models_gpu() ? kGpuWorkspace : matmul_workspace(ctx, a);
  if (bytes > 0) kernel.workspace = ctx.arena.allocate("matmul workspace", DType::u8, {static_cast<int64_t>(bytes)});
  launch(ctx, "matmul", matmul_kernels, kernel,
         {.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
          .bytes_read = static_cast<double>(a.a.bytes() + a.b.bytes() + (a.accumulate ? a.c.bytes() : 0)),
          .bytes_written = static_cast<double>(a.c.bytes())});
}

}  // namespace yoke
