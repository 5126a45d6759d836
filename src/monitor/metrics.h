// metrics.jsonl: one JSON object a line, for programs that plot or compare runs.
//
// A logged step:  {"step": 10, "epoch": 0.1, "loss": 2.5, "lr": 3e-4, "grad_norm": 1.2, "tokens": 40960,
//                  "tokens_per_second": 1234.5, "mfu": 0.4, "memory": 123456, "seconds": 33.1, "skipped": 0}
// and where ranks were slow: "slow_ranks": [{"rank": 3, "host": "a", "seconds_lost": 4.5, "cause": "..."}] of about the
// last five seconds, or longer steps
// An evaluation:  {"step": 10, "validation_loss": 2.6, "validation_tokens": 4096, "validation_seconds": 1.5}
// A number that is not finite or not known is null.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "monitor/report.h"

namespace yoke {

class MetricsWriter {
 public:
  /// Appends to `path`, whose lines beyond `resumed_step` are dropped first: what a run that continues from there
  /// will write again. 0 begins a new file. UserError (bad_file) when the file can't be opened.
  MetricsWriter(const std::filesystem::path& path, int64_t resumed_step);
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;
  ~MetricsWriter();

  /// One line, in the file when this returns. A disk that is full is warned of once and never ends the run: the line
  /// is lost, the file stays whole.
  void step(const StepReport& report);
  void evaluation(const EvaluationReport& report);

 private:
  void append(const std::string& line);

  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;  ///< bytes of whole lines
  bool warned_ = false;
};

}  // namespace yoke
