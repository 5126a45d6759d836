// The training loop: walks the data step by step, evaluates, logs, saves, and ends in order when interrupted.
#pragma once

#include <chrono>
#include <optional>

#include "data/loader.h"
#include "monitor/metrics.h"
#include "monitor/progress.h"
#include "train/commands.h"
#include "train/engine.h"
#include "train/interrupt.h"
#include "train/loss_scaler.h"
#include "train/pace.h"
#include "train/plan_file.h"
#include "train/run_setup.h"
#include "train/team.h"

namespace yoke {

/// Where a run is: with the engine's tensors, all that a resumed run needs.
struct TrainingState {
  int64_t step = 0;     ///< optimizer updates made
  int64_t skipped = 0;  ///< steps left out because something was not finite
  int64_t tokens = 0;   ///< read so far
  LoaderState loader;
  LossScaler::State scaler;
};

class Trainer {
 public:
  /// Steps in a row that may be non-finite before the run ends (exit 5); fp16 has its loss scale for that.
  static constexpr int kMaxBadSteps = 5;

  /// Every rank of `team` has one, and calls the same.
  Trainer(const RunSetup& run, Context& ctx, Engine& engine, Team& team);

  /// Continues from a checkpoint that was loaded into the engine.
  void restore(const TrainingState& state);
  /// To the end, or to the first signal. UserError for everything else that ends a run.
  ExitCode train();

 private:
  StepResult step(const StepData& data);
  /// False: the update was skipped. Throws when training can't go on, with the state saved.
  bool accept(const StepResult& result, const StepData& data);
  void check_first_step(const StepResult& result, const StepData& data);
  void refuse_dead(const std::vector<std::string>& dead) const;
  void after_first_step(double seconds);
  /// Writes plan.json with what was taken so far.
  Measured record_memory() const;
  void report(const StepResult& result, const StepData& data, double seconds);
  /// `last`: of the run, whose result is no result unless the loss is finite.
  void evaluate(bool last);
  [[noreturn]] void stop_non_finite(const std::string& message);
  void save();
  /// A checkpoint that can't be written does not end the run. False, with the reason in the log, when that happens.
  bool try_save();
  /// The last evaluation, state and model.
  ExitCode finish();
  std::string newest_state() const;
  /// Whether any rank was asked to stop.
  bool stop_requested(const InterruptGuard& interrupt) const;
  std::filesystem::path output() const { return run_.recipe().output; }

  const RunSetup& run_;
  Context& ctx_;
  Engine& engine_;
  Team& team_;
  Loader loader_;
  LossScaler scaler_;
  Pace pace_;
  TrainingState state_;
  int64_t saved_at_ = -1;  // step of the newest state on disk; -1: none
  int bad_steps_ = 0;
  bool first_step_done_ = false;
  double first_step_seconds_ = 0;
  double seconds_per_token_ = 0;  // smoothed
  std::chrono::steady_clock::time_point begin_;
  std::optional<MetricsWriter> metrics_;
  std::optional<ProgressDisplay> progress_;
};

}  // namespace yoke
