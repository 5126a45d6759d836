#include "data/loader.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "data/permutation.h"

namespace yoke {

namespace {

constexpr size_t kStepsAhead = 2;

}  // namespace

Loader::Loader(const Dataset& data, const LoaderOptions& options) : data_(data), options_(options) {
  constexpr int64_t kMostRows = int64_t{1} << 32;
  YOKE_ASSERT(data.rows() >= 1);
  YOKE_ASSERT(options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks);
  if (options.micro_batch < 1 || options.micro_batch > kMostRows)
    fail_usage("train.micro_batch is {}; it must be at least 1.", options.micro_batch);
  if (options.global_batch < 1 || options.global_batch > kMostRows)
    fail_usage("train.global_batch is {}; it must be at least 1.", options.global_batch);
  if (options.limit < 0) fail_usage("the number of rows to train on is {}; it must not be negative.", options.limit);
  start();
}

Loader::~Loader() { stop(); }

int64_t Loader::steps() const {
  YOKE_ASSERT(options_.limit > 0, "a loader without end has no number of steps");
  return (options_.limit - 1) / options_.global_batch + 1;
}

/// The first of a step's `rows` that is not of a lower rank.
int64_t Loader::share_of(int64_t rows, int64_t rank) const {
  return rows / options_.ranks * rank + rows % options_.ranks * rank / options_.ranks;
}

/// Reads the step that begins at `from`; a pure function of the data, the options and `from`.
std::optional<StepData> Loader::read(const LoaderState& from) const {
  const int64_t epoch_rows = data_.rows();
  int64_t rows = options_.global_batch;
  if (options_.limit > 0) {
    // Compared by epochs first: the rows behind a restored place may be more than 63 bits can count.
    if (from.epoch > options_.limit / epoch_rows) return {};
    rows = std::min(rows, options_.limit - from.epoch * epoch_rows - from.position);
    if (rows <= 0) return {};
  }
  StepData step;
  step.rows = rows;
  step.partial = rows < options_.global_batch;
  const int64_t begin = share_of(rows, options_.rank), end = share_of(rows, options_.rank + 1);
  const int64_t largest_share = (rows + options_.ranks - 1) / options_.ranks;
  const int64_t batches = (largest_share + options_.micro_batch - 1) / options_.micro_batch;

  std::optional<Permutation> order;
  int64_t order_epoch = -1;
  for (int64_t i = 0; i < batches; ++i) {
    const int64_t first = begin + i * options_.micro_batch;
    const int64_t count = std::clamp<int64_t>(end - first, 0, options_.micro_batch);
    Batch batch = padding_batch(std::max<int64_t>(count, 1), data_.sequence_length(), 0);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t place = from.position + first + r;
      const int64_t epoch = from.epoch + place / epoch_rows;
      int64_t row = place % epoch_rows;
      if (options_.shuffle) {
        if (epoch != order_epoch) order.emplace(epoch_rows, options_.seed, epoch);
        order_epoch = epoch;
        row = static_cast<int64_t>((*order)(static_cast<uint64_t>(row)));
      }
      data_.read(row, batch, r);
    }
    step.supervised += batch.supervised;
    step.batches.push_back(std::move(batch));
  }
  const int64_t place = from.position + rows;
  step.after = {from.epoch + place / epoch_rows, place % epoch_rows};
  return step;
}

void Loader::read_ahead(const std::stop_token& stopping, LoaderState from) {
  for (bool more = true; more;) {
    Slot slot;
    try {
      slot.step = read(from);
    } catch (...) {
      slot.fault = std::current_exception();
    }
    more = slot.step.has_value();
    if (more) from = slot.step->after;
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stopping, [&] { return ready_.size() < kStepsAhead; })) return;
    ready_.push_back(std::move(slot));
    changed_.notify_all();
  }
}

std::optional<StepData> Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty(); });
  // The end and a fault stay where they are: every later call meets them again.
  if (ready_.front().fault) std::rethrow_exception(ready_.front().fault);
  if (!ready_.front().step) return {};
  std::optional<StepData> step = std::move(ready_.front().step);
  ready_.pop_front();
  state_ = step->after;
  changed_.notify_all();
  return step;
}

void Loader::restore(const LoaderState& state) {
  if (state.epoch < 0 || state.position < 0 || state.position >= data_.rows() || state.epoch > INT64_MAX / 2)
    fail_file(
        "the saved place in the data (epoch {}, row {}) does not exist: the data set has {} rows. The data, its "
        "sequence length or packing changed since the state was saved.",
        state.epoch, state.position, data_.rows());
  stop();
  state_ = state;
  start();
}

std::string Loader::next_samples_hash() const {
  Hasher hasher;
  const std::optional<StepData> step = read(state_);
  const int64_t rows = step ? share_of(step->rows, options_.rank + 1) - share_of(step->rows, options_.rank) : 0;
  if (rows == 0) return "";
  for (int64_t i = 0; i * options_.micro_batch < rows; ++i) {
    const Batch& batch = step->batches[static_cast<size_t>(i)];
    hasher.update(batch.tokens.data(), batch.tokens.size() * sizeof(int32_t));
  }
  return hasher.hex();
}

void Loader::start() {
  thread_ = std::jthread([this, from = state_](const std::stop_token& stopping) { read_ahead(stopping, from); });
}

void Loader::stop() {
  thread_.request_stop();
  thread_.join();
  ready_.clear();
}

}  // namespace yoke
