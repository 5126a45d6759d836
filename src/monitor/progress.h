// What a person sees of a run: a bar on a terminal, plain lines in a pipe or a file.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "monitor/report.h"

namespace yoke {

/// "step 10/2000 [==>       ]  0 %  loss 2.3456  lr 3.0e-04 ..." in at most `width` columns; what matters least is left
/// out first. `seconds_left` is absent while it isn't known.
std::string progress_bar(const StepReport& report, std::optional<double> seconds_left, int width);

/// The same numbers as one line without limit.
std::string progress_line(const StepReport& report, std::optional<double> seconds_left);

/// Writes to `fd`: the bar when that is a terminal, redrawn at most ten times a second and fitted to its width at that
/// moment, else a line for each logged step. While a bar is shown, log lines go above it. A closed pipe is ignored.
class ProgressDisplay {
 public:
  /// `every` is the recipe's log.every; only plain lines follow it.
  ProgressDisplay(int fd, int64_t every);
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;
  ~ProgressDisplay();  ///< leaves the last bar on the screen

  void step(const StepReport& report);  ///< after every step, logged or not
  void evaluation(const EvaluationReport& report);

 private:
  class ClearBeforeLog;

  std::optional<double> seconds_left(const StepReport& report);
  void draw(const std::string& bar, int width);
  void clear();

  int fd_;
  int64_t every_;
  bool terminal_;
  std::optional<StepReport> first_;
  std::shared_ptr<ClearBeforeLog> log_hook_;
  std::mutex mutex_;  ///< log lines come from any thread
  size_t drawn_ = 0;  ///< columns of the bar on the screen
  std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace yoke
