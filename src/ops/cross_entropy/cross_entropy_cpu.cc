#include <cstring>

#include "ops/cpu_math.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"

namespace yoke::YOKE_ISA {
namespace {

struct RowSums {
  float largest = -INFINITY;
  double sum = 0;    // of exp(x - largest)
  float poison = 0;  // NaN as soon as a logit is infinite or NaN
};

/// One pass: the sum is rescaled whenever a block holds a larger logit than all before it.
template <class T>
RowSums sum_row(const T* logits, int64_t cols) {
  RowSums row;
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t n = std::min(kBlock, cols - begin);
    float buffer[kBlock];
    const float* x = widen(logits + begin, buffer, n);
    float largest = row.largest, poison = 0;
#pragma omp simd reduction(max : largest) reduction(+ : poison)
    for (int64_t i = 0; i < n; ++i) {
      largest = x[i] > largest ? x[i] : largest;
      poison += x[i] * 0.0f;
    }
    if (largest > row.largest) row.sum *= std::exp(static_cast<double>(row.largest) - static_cast<double>(largest));
    row.largest = largest;
    row.poison += poison;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += fast_exp(x[i] - largest);
    row.sum += static_cast<double>(sum);
  }
  return row;
}

/// `target`: its column, or -1 where it isn't one of these.
template <class T>
void write_gradient(const T* logits, int64_t cols, const RowSums& row, float scale, int64_t target, T* dlogits) {
  const double target_logit = target < 0 ? 0 : static_cast<double>(to_float(logits[target]));
  const auto factor = static_cast<float>(scale / row.sum) + row.poison;
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t n = std::min(kBlock, cols - begin);
    float buffer[kBlock];
    const float* x = widen(logits + begin, buffer, n);
    float* y = block_of(dlogits + begin, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = fast_exp(x[i] - row.largest) * factor;
    narrow(y, dlogits + begin, n);
  }
  if (target < 0) return;
  const double probability = std::exp(target_logit - static_cast<double>(row.largest)) / row.sum;
  dlogits[target] = from_float<T>(static_cast<float>((probability - 1) * scale) + row.poison);
}

template <class T>
void losses(const CrossEntropy& a, int threads) {
  const int64_t rows = a.logits.rows(), cols = a.logits.cols();
  const bool gradient = a.dlogits.data != nullptr;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
  for (int64_t t = 0; t < rows; ++t) {
    const T* logits = a.logits.as<T>() + t * a.logits.row_stride;
    T* dlogits = gradient ? a.dlogits.as<T>() + t * a.dlogits.row_stride : nullptr;
    const int64_t target = a.targets.as<int32_t>()[t];
    if (target < 0) {
      a.loss.as<float>()[t] = 0;
      if (gradient) std::memset(static_cast<void*>(dlogits), 0, static_cast<size_t>(cols) * sizeof(T));
      continue;
    }
    const RowSums row = sum_row(logits, cols);
    // The maximum before the logarithm: what remains of their difference is exact.
    const double below = static_cast<double>(row.largest) - static_cast<double>(to_float(logits[target]));
    a.loss.as<float>()[t] = static_cast<float>(std::log(row.sum) + below) + row.poison;
    if (gradient) write_gradient(logits, cols, row, a.scale, target, dlogits);
  }
}

/// Columns of a rank's logits that are part of the vocabulary.
template <class Args>
int64_t real_columns(const Args& a) {
  return std::clamp<int64_t>(a.vocabulary - a.first, 0, a.logits.cols());
}

/// The target's column on this rank, or -1.
int64_t column_of(int32_t target, int64_t first, int64_t columns) {
  const int64_t column = target - first;
  return target >= 0 && column >= 0 && column < columns ? column : -1;
}

template <class T>
void write_sums(const CrossEntropySums& a, int threads) {
  const int64_t rows = a.logits.rows(), cols = real_columns(a);
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
  for (int64_t t = 0; t < rows; ++t) {
    const T* logits = a.logits.as<T>() + t * a.logits.row_stride;
    const int32_t target = a.targets.as<int32_t>()[t];
    const RowSums row = target < 0 ? RowSums{.largest = 0} : sum_row(logits, cols);
    const int64_t at = column_of(target, a.first, cols);
    double* sums = a.sums.as<double>() + t * CrossEntropySums::kSums;
    sums[0] = static_cast<double>(row.largest);
    sums[1] = row.sum;
    sums[2] = at < 0 ? 0 : static_cast<double>(to_float(logits[at]));
    sums[3] = static_cast<double>(row.poison);
  }
}

/// One token's sums over the whole vocabulary, always in the order of ranks.
RowSums total(const TensorView& sums, int64_t token, double* target_logit) {
  const int64_t ranks = sums.shape[0], tokens = sums.shape[1];
  const auto of = [&](int64_t rank) { return sums.as<double>() + (rank * tokens + token) * CrossEntropySums::kSums; };
  RowSums row;
  for (int64_t r = 0; r < ranks; ++r) row.largest = std::max(row.largest, static_cast<float>(of(r)[0]));
  for (int64_t r = 0; r < ranks; ++r) {
    // A rank that has nothing but padding has no largest logit.
    if (of(r)[1] != 0) row.sum += of(r)[1] * std::exp(of(r)[0] - static_cast<double>(row.largest));
    *target_logit += of(r)[2];
    row.poison += static_cast<float>(of(r)[3]);
  }
  return row;
}

template <class T>
void shard_losses(const CrossEntropyShard& a, int threads) {
  const int64_t rows = a.logits.rows(), cols = real_columns(a), padding = a.logits.cols() - cols;
  const bool gradient = a.dlogits.data != nullptr;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= kWorthThreads)
  for (int64_t t = 0; t < rows; ++t) {
    const int32_t target = a.targets.as<int32_t>()[t];
    T* dlogits = gradient ? a.dlogits.as<T>() + t * a.dlogits.row_stride : nullptr;
    double target_logit = 0;
    const RowSums row = target < 0 ? RowSums{} : total(a.sums, t, &target_logit);
    if (target < 0) {
      a.loss.as<float>()[t] = 0;
    } else {
      const double below = static_cast<double>(row.largest) - target_logit;
      a.loss.as<float>()[t] = static_cast<float>(std::log(row.sum) + below) + row.poison;
    }
    if (!gradient) continue;
    const int64_t zeros = target < 0 ? cols + padding : padding;
    std::memset(static_cast<void*>(dlogits + a.logits.cols() - zeros), 0, static_cast<size_t>(zeros) * sizeof(T));
    if (target < 0) continue;
    const T* logits = a.logits.as<T>() + t * a.logits.row_stride;
    write_gradient(logits, cols, row, a.scale, column_of(target, a.first, cols), dlogits);
  }
}

}  // namespace

void cross_entropy(Context& ctx, const CrossEntropy& a) {
  YOKE_FOR_TYPE(a.logits.dtype, T, losses<T>(a, ctx.device.threads()));
}

void cross_entropy_sums(Context& ctx, const CrossEntropySums& a) {
  YOKE_FOR_TYPE(a.logits.dtype, T, write_sums<T>(a, ctx.device.threads()));
}

void cross_entropy_shard(Context& ctx, const CrossEntropyShard& a) {
  YOKE_FOR_TYPE(a.logits.dtype, T, shard_losses<T>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
