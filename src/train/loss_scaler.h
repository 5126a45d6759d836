// Dynamic loss scaling for fp16 (Micikevicius et al. 2018), with hysteresis.
#pragma once

#include <cstdint>

namespace yoke {

class LossScaler {
 public:
  static constexpr double kFirst = 65536, kLeast = 1;
  static constexpr int64_t kGrowthSteps = 1000;  ///< good steps in a row before the scale doubles
  static constexpr int kHysteresis = 2;          ///< overflows before the scale halves

  struct State {
    double scale = kFirst;
    int64_t good_steps = 0;
    int hysteresis = kHysteresis;
  };

  double scale() const { return state_.scale; }
  void good_step();
  /// False when the scale is at its least already: training can't go on.
  bool overflow();

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  State state_;
};

}  // namespace yoke
