#include "train/step_schedule.h"

#include <fmt/format.h>

namespace yoke {

std::vector<Action> accumulation_schedule(int64_t micro_batches) {
  std::vector<Action> schedule;
  for (int64_t m = 0; m < micro_batches; ++m) {
    schedule.push_back({Action::Kind::forward, m});
    schedule.push_back({Action::Kind::backward, m});
  }
  schedule.push_back({Action::Kind::step, -1});
  return schedule;
}

std::string str(const std::vector<Action>& schedule) {
  std::string text;
  for (const Action& action : schedule) {
    if (!text.empty()) text += ' ';
    switch (action.kind) {
      case Action::Kind::forward:
        text += fmt::format("F{}", action.micro_batch);
        break;
      case Action::Kind::backward:
        text += fmt::format("B{}", action.micro_batch);
        break;
      case Action::Kind::step:
        text += 'S';
        break;
    }
  }
  return text;
}

}  // namespace yoke
