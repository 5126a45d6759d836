#include <cstring>

#include "ops/cpu_math.h"
#include "ops/embedding/embedding_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

/// Every token's columns [begin, begin + n) in order, so that sums do not depend on the threads.
template <class T>
void add_columns(const EmbeddingBackward& a, int64_t begin, int64_t n) {
  float buffer[kBlock];
  const int32_t* tokens = a.tokens.as<int32_t>();
  for (int64_t t = 0; t < a.dy.rows(); ++t) {
    const float* dy = widen(a.dy.as<T>() + t * a.dy.row_stride + begin, buffer, n);
    float* row = a.dtable.as<float>() + tokens[t] * a.dtable.row_stride + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) row[i] += dy[i];
  }
}

template <class T>
void backward(const EmbeddingBackward& a, int threads) {
  const int64_t rows = a.dtable.rows(), cols = a.dtable.cols();
  if (!a.accumulate) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
    for (int64_t row = 0; row < rows; ++row) {
      std::memset(a.dtable.as<float>() + row * a.dtable.row_stride, 0, static_cast<size_t>(cols) * sizeof(float));
    }
  }
  // A thread takes a range of columns, whole cache lines of the table where it can.
  constexpr int64_t kLine = 16;
  const int64_t share = (cols + threads * kLine - 1) / (threads * kLine) * kLine;
  const int64_t width = std::min(share, kBlock);
  const int64_t blocks = (cols + width - 1) / width;
#pragma omp parallel for num_threads(threads) schedule(static) if (a.dy.rows() * cols >= kWorthThreads)
  for (int64_t block = 0; block < blocks; ++block) {
    add_columns<T>(a, block * width, std::min(width, cols - block * width));
  }
}

}  // namespace

void embedding_forward(Context& ctx, const EmbeddingForward& a) {
  const int64_t tokens = a.y.rows();
  const auto size = static_cast<int64_t>(size_of(a.y.dtype));
  const auto bytes = static_cast<size_t>(a.y.cols() * size);
#pragma omp parallel for num_threads(ctx.device.threads()) schedule(static) if (a.y.elements() >= kWorthThreads)
  for (int64_t t = 0; t < tokens; ++t) {
    std::memcpy(a.y.as<char>() + t * a.y.row_stride * size,
                a.table.as<char>() + a.tokens.as<int32_t>()[t] * a.table.row_stride * size, bytes);
  }
}

void embedding_backward(Context& ctx, const EmbeddingBackward& a) {
  YOKE_FOR_TYPE(a.dy.dtype, T, backward<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
