#include "train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace yoke {

double learning_rate(const TrainRecipe& train, int64_t total_steps, int64_t step) {
  const double top = train.learning_rate, floor = train.final_learning_rate;
  if (step <= train.warmup) return top * static_cast<double>(step) / static_cast<double>(train.warmup);
  if (train.schedule == ScheduleKind::constant) return top;
  const int64_t decay = train.decay_steps.value_or(total_steps - train.warmup);
  const int64_t begin = train.schedule == ScheduleKind::wsd ? total_steps - decay : train.warmup;
  const double done =
      std::clamp(static_cast<double>(step - begin) / static_cast<double>(std::max<int64_t>(decay, 1)), 0.0, 1.0);
  if (train.schedule == ScheduleKind::cosine) {
    return floor + (top - floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return top + (floor - top) * done;
}

}  // namespace yoke
