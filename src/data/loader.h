// Micro-batches of a rank, step by step, read ahead.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/batch.h"
#include "data/dataset.h"

namespace yoke {

struct LoaderOptions {
  int64_t micro_batch = 1;   ///< rows of a batch, at most
  int64_t global_batch = 1;  ///< rows of a step over all ranks
  int rank = 0;              ///< among the data-parallel ranks
  int ranks = 1;
  bool shuffle = true;  ///< a new order every epoch; else the data set's own
  uint64_t seed = 1;
  int64_t limit = 0;  ///< ends after so many rows over all ranks, such as epochs x data.rows(); 0: never
};

/// Where a loader is: all its state.
struct LoaderState {
  int64_t epoch = 0;
  int64_t position = 0;  ///< rows of the epoch that are behind it, over all ranks
  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

/// One optimizer step's data.
struct StepData {
  /// This rank's micro-batches. All ranks have the same number, and each has at least one row: where a rank has no rows
  /// left the batch is one row of padding, so that every rank takes part in every collective.
  std::vector<Batch> batches;
  int64_t rows = 0;        ///< over all ranks, padding not counted
  int64_t supervised = 0;  ///< targets of this rank's batches
  bool partial = false;    ///< fewer rows than global_batch: the last step before the limit
  LoaderState after;       ///< the state behind this step
};

/// The rows of every epoch, in that epoch's order, form one stream. Step k takes the next `global_batch` rows of it,
/// whatever the number of ranks; rank r takes [n*r/ranks, n*(r+1)/ranks) of a step's n rows. A step reaches over the
/// end of an epoch; only the end of the last epoch may cut one short. Memory: three steps of this rank.
class Loader {
 public:
  /// `data` must live longer and hold at least one row. UserError (usage) when an option is out of range.
  Loader(const Dataset& data, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next step, or nothing at the limit. Faults of the data (UserError) are thrown here, in their place.
  std::optional<StepData> next();

  /// Behind the last step that next() returned; what was read ahead doesn't count.
  LoaderState state() const { return state_; }
  /// Goes on from `state`, bit for bit as a loader that came there step by step. UserError (bad_file) when the data set
  /// has no such place.
  void restore(const LoaderState& state);

  /// Steps from the start to the limit.
  int64_t steps() const;
  /// XXH3-128 of the tokens that the next step holds for this rank: differs between ranks. "" where it holds none.
  std::string next_samples_hash() const;

 private:
  std::optional<StepData> read(const LoaderState& from) const;
  int64_t share_of(int64_t rows, int64_t rank) const;
  void start();
  void stop();
  void read_ahead(const std::stop_token& stopping, LoaderState from);

  const Dataset& data_;
  LoaderOptions options_;
  LoaderState state_;

  struct Slot {
    std::optional<StepData> step;
    std::exception_ptr fault;
  };
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Slot> ready_;
  std::jthread thread_;
};

}  // namespace yoke
