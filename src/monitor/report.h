// What a run tells about itself: the numbers behind metrics.jsonl and the progress display.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace yoke {

/// A rank that the others waited for.
struct SlowRank {
  int rank = 0;
  std::string host;
  double lost = 0;  ///< seconds that it took longer than its like
  std::string cause;
  bool operator==(const SlowRank&) const = default;
};

/// The state of a run after an optimizer step.
struct StepReport {
  int64_t step = 0;  ///< 1 after the first optimizer step
  int64_t total_steps = 0;
  double epoch = 0;                  ///< passes over the training data so far
  double loss = 0;                   ///< nats per supervised token of this step
  double learning_rate = 0;          ///< of this step
  double grad_norm = 0;              ///< global, before clipping
  int64_t tokens = 0;                ///< read so far, earlier sessions of a resumed run included
  double tokens_per_second = 0;      ///< lately
  std::optional<double> mfu;         ///< share of the device's peak, 0 to 1; absent where the peak is unknown
  int64_t memory = 0;                ///< bytes: peak of the arenas
  double seconds = 0;                ///< since this session began to train
  int64_t skipped = 0;               ///< steps left out so far because something was not finite
  std::vector<SlowRank> slow_ranks;  ///< lately; of several ranks
};

/// An evaluation on the held-back data.
struct EvaluationReport {
  int64_t step = 0;    ///< after which it was made
  double loss = 0;     ///< nats per supervised token
  int64_t tokens = 0;  ///< supervised ones
  double seconds = 0;  ///< that it took
};

/// Steps that are logged: the first, the last, and every `every`-th.
constexpr bool is_logged(int64_t step, int64_t total_steps, int64_t every) {
  return step == 1 || step == total_steps || step % every == 0;
}

}  // namespace yoke
