// The order of work within an optimizer step, as plain data that can be printed, tested and walked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace yoke {

struct Action {
  enum class Kind { forward, backward, step };
  Kind kind = Kind::forward;
  int64_t micro_batch = -1;  ///< -1 for step
};

/// One stage, gradient accumulation: forward and backward of each micro-batch in turn, then the step.
std::vector<Action> accumulation_schedule(int64_t micro_batches);

/// "F0 B0 F1 B1 S"
std::string str(const std::vector<Action>& schedule);

}  // namespace yoke
