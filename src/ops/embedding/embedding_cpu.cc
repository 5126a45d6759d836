#include <cstring>

#include "ops/cpu_math.h"
#include "ops/embedding/embedding_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

/// The token's row in a table of `rows` rows whose first is that of token `first`, or -1.
int64_t row_of(int32_t token, int64_t first, int64_t rows) {
  const int64_t row = token - first;
  return row >= 0 && row < rows ? row : -1;
}

/// Every token's columns [begin, begin + n) in order, so that sums do not depend on the threads.
template <class T>
void add_columns(const EmbeddingBackward& a, int64_t begin, int64_t n) {
  float buffer[kBlock];
  const int32_t* tokens = a.tokens.as<int32_t>();
  for (int64_t t = 0; t < a.dy.rows(); ++t) {
    const int64_t at = row_of(tokens[t], a.first, a.dtable.rows());
    if (at < 0) continue;
    const float* dy = widen(a.dy.as<T>() + t * a.dy.row_stride + begin, buffer, n);
    float* row = a.dtable.as<float>() + at * a.dtable.row_stride + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) row[i] += dy[i];
  }
}

/// The same for a bf16 table: token by token in fp32, each row rounded once.
template <class T>
void add_columns_rounded(const EmbeddingBackwardKernel& a, int64_t begin, int64_t n) {
  const int32_t* tokens = a.tokens.as<int32_t>();
  const int32_t* order = a.order.as<int32_t>();
  const int64_t count = a.dy.rows();
  float buffer[kBlock], sum[kBlock];
  for (int64_t first = 0; first < count;) {
    const int32_t token = tokens[order[first]];
    const int64_t at = row_of(token, a.first, a.dtable.rows());
    if (at < 0) {
      ++first;
      continue;
    }
    bf16* row = a.dtable.as<bf16>() + at * a.dtable.row_stride + begin;
    widen(row, sum, n);
    for (; first < count && tokens[order[first]] == token; ++first) {
      const float* dy = widen(a.dy.as<T>() + order[first] * a.dy.row_stride + begin, buffer, n);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += dy[i];
    }
    narrow(sum, row, n);
  }
}

template <class T>
void backward(const EmbeddingBackwardKernel& a, int threads) {
  const int64_t rows = a.dtable.rows(), cols = a.dtable.cols();
  const auto size = static_cast<int64_t>(size_of(a.dtable.dtype));
  if (!a.accumulate) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
    for (int64_t row = 0; row < rows; ++row) {
      std::memset(a.dtable.as<char>() + row * a.dtable.row_stride * size, 0, static_cast<size_t>(cols * size));
    }
  }
  const bool rounded = a.dtable.dtype == DType::bf16;
  if (rounded) {  // occurrences of a token side by side, in order
    const int32_t* tokens = a.tokens.as<int32_t>();
    int32_t* order = a.order.as<int32_t>();
    for (int64_t t = 0; t < a.dy.rows(); ++t) order[t] = static_cast<int32_t>(t);
    std::sort(order, order + a.dy.rows(),
              [=](int32_t x, int32_t y) { return tokens[x] != tokens[y] ? tokens[x] < tokens[y] : x < y; });
  }
  // A thread takes a range of columns, whole cache lines of the table where it can.
  constexpr int64_t kLine = 16;
  const int64_t share = (cols + threads * kLine - 1) / (threads * kLine) * kLine;
  const int64_t width = std::min(share, kBlock);
  const int64_t blocks = (cols + width - 1) / width;
#pragma omp parallel for num_threads(threads) schedule(static) if (a.dy.rows() * cols >= kWorthThreads)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * width, n = std::min(width, cols - begin);
    rounded ? add_columns_rounded<T>(a, begin, n) : add_columns<T>(a, begin, n);
  }
}

}  // namespace

void embedding_forward(Context& ctx, const EmbeddingForward& a) {
  const int64_t tokens = a.y.rows();
  const auto size = static_cast<int64_t>(size_of(a.y.dtype));
  const auto bytes = static_cast<size_t>(a.y.cols() * size);
#pragma omp parallel for num_threads(ctx.device.threads()) schedule(static) if (a.y.elements() >= kWorthThreads)
  for (int64_t t = 0; t < tokens; ++t) {
    char* y = a.y.as<char>() + t * a.y.row_stride * size;
    const int64_t at = row_of(a.tokens.as<int32_t>()[t], a.first, a.table.rows());
    if (at < 0) {
      std::memset(y, 0, bytes);
    } else {
      std::memcpy(y, a.table.as<char>() + at * a.table.row_stride * size, bytes);
    }
  }
}

void embedding_backward(Context& ctx, const EmbeddingBackwardKernel& a) {
  YOKE_FOR_TYPE(a.dy.dtype, T, backward<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
