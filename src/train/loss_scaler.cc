#include "train/loss_scaler.h"

#include <algorithm>

namespace yoke {

void LossScaler::good_step() {
  if (++state_.good_steps < kGrowthSteps) return;
  state_.good_steps = 0;
  state_.scale *= 2;
  state_.hysteresis = kHysteresis;
}

bool LossScaler::overflow() {
  state_.good_steps = 0;
  if (--state_.hysteresis > 0) return true;
  state_.hysteresis = 0;
  if (state_.scale <= kLeast) return false;
  state_.scale = std::max(kLeast, state_.scale / 2);
  return true;
}

}  // namespace yoke
