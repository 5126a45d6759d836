#include "ops/adafactor/adafactor_kernels.h"
#include "ops/cpu_moment.h"

namespace yoke::YOKE_ISA {
namespace {

constexpr double kLeast = 1e-30;

/// body(g, first column, n) for the scaled gradient of a row, block by block from column `begin` to `end`.
template <class Body>
void walk_row(const AdafactorKernel& a, int64_t row, int64_t begin, int64_t end, const Body& body) {
  const int64_t cols = a.weights.master.cols();
  float buffer[kBlock], scaled[kBlock];
  for (; begin < end; begin += kBlock) {
    const int64_t n = std::min(kBlock, end - begin);
    const float* gradient = load_block(a.gradient, row * cols + begin, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) scaled[i] = gradient[i] * a.gradient_scale;
    body(scaled, begin, n);
  }
}

/// R: each row's mean of squares goes into its running mean.
void update_rows(const AdafactorKernel& a, int threads) {
  const int64_t rows = a.weights.master.rows(), cols = a.weights.master.cols();
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
  for (int64_t row = 0; row < rows; ++row) {
    double total = 0;
    walk_row(a, row, 0, cols, [&](const float* g, int64_t, int64_t n) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(g[i]) * static_cast<double>(g[i]);
      total += sum;
    });
    float& mean = a.row.as<float>()[row];
    const double now = total / static_cast<double>(cols) + kLeast;
    mean = static_cast<float>(a.beta * static_cast<double>(mean) + (1 - a.beta) * now);
  }
}

/// C, or v of a vector: a thread takes a range of columns, so that sums do not depend on the threads.
void update_columns(const AdafactorKernel& a, const TensorView& state, int threads) {
  const int64_t rows = a.weights.master.rows(), cols = a.weights.master.cols();
  const int64_t blocks = (cols + kBlock - 1) / kBlock;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kBlock, count = std::min(kBlock, cols - begin);
    double sums[kBlock] = {};
    for (int64_t row = 0; row < rows; ++row) {
      walk_row(a, row, begin, begin + count, [&](const float* g, int64_t, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
      });
    }
    float* mean = state.as<float>() + begin;
    for (int64_t i = 0; i < count; ++i) {
      const double now = sums[i] / static_cast<double>(rows) + kLeast;
      mean[i] = static_cast<float>(a.beta * static_cast<double>(mean[i]) + (1 - a.beta) * now);
    }
  }
}

/// What a row's gradient is multiplied with besides 1 / sqrt(col): 1 / sqrt(row / mean of rows).
struct RowFactor {
  const float* row;  // null: a vector
  double mean;
  float operator()(int64_t i) const {
    return row == nullptr ? 1.0f : static_cast<float>(std::sqrt(mean / static_cast<double>(row[i])));
  }
};

double sum_of_squares(const AdafactorKernel& a, const RowFactor& factor, const float* col, int threads) {
  const int64_t rows = a.weights.master.rows(), cols = a.weights.master.cols();
  double* sums = a.sums.as<double>();
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
  for (int64_t row = 0; row < rows; ++row) {
    const float scale = factor(row);
    sums[row] = 0;
    walk_row(a, row, 0, cols, [&](const float* g, int64_t begin, int64_t n) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) {
        const float u = g[i] * scale / std::sqrt(col[begin + i]);
        sum += static_cast<double>(u) * static_cast<double>(u);
      }
      sums[row] += sum;
    });
  }
  double total = 0;
  for (int64_t row = 0; row < rows; ++row) total += sums[row];
  return total;
}

/// `size`: learning rate / max(1, root mean square).
void apply(const AdafactorKernel& a, const RowFactor& factor, const float* col, float size, int threads) {
  const int64_t cols = a.weights.master.cols();
  const float decay = a.learning_rate * a.weight_decay;
  for_blocks(threads, {1, a.weights.master.elements()}, [=, &a, &factor](int64_t, int64_t begin, int64_t count) {
    float gradient_buffer[kBlock], master_buffer[kBlock];
    const float* gradient = load_block(a.gradient, begin, count, gradient_buffer);
    float* master = load_weights(a.weights, begin, count, master_buffer);
    for (int64_t at = 0; at < count;) {  // a block may hold ends of rows
      const int64_t row = (begin + at) / cols, first = (begin + at) % cols, n = std::min(count - at, cols - first);
      const float scale = a.gradient_scale * factor(row);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const float u = gradient[at + i] * scale / std::sqrt(col[first + i]);
        master[at + i] -= size * u + decay * master[at + i];
      }
      at += n;
    }
    store_weights(master, a.weights, begin, count, a.random);
  });
}

}  // namespace

void adafactor(Context& ctx, const AdafactorKernel& a) {
  const int threads = ctx.device.threads();
  const int64_t rows = a.weights.master.rows();
  RowFactor factor{nullptr, 1};
  TensorView columns = a.v;
  if (a.v.absent()) {
    update_rows(a, threads);
    columns = a.col;
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) sum += static_cast<double>(a.row.as<float>()[row]);
    factor = {a.row.as<float>(), sum / static_cast<double>(rows)};
  }
  update_columns(a, columns, threads);
  const float* col = columns.as<float>();
  const double square = sum_of_squares(a, factor, col, threads);
  const double rms = std::sqrt(square / static_cast<double>(a.weights.master.elements()));
  apply(a, factor, col, static_cast<float>(static_cast<double>(a.learning_rate) / std::max(1.0, rms)), threads);
}

}  // namespace yoke::YOKE_ISA
