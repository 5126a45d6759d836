#include "train/pipeline_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace yoke {

namespace {

using Work = PipelineWork;

/// When what others wait for was done: NaN before.
class Ends {
 public:
  explicit Ends(const PipelineShape& shape)
      : shape_(shape), ends_(2 * static_cast<size_t>(shape.stages() * shape.micro_batches), NAN) {}
  double& of(bool forward, int stage, int micro_batch) {
    return ends_[2 * static_cast<size_t>(stage * shape_.micro_batches + micro_batch) + (forward ? 1 : 0)];
  }
  /// The earliest begin of a computation; NaN while it is unknown.
  double ready(const PipelineAction& a, double message) {
    if (a.work == Work::forward) {
      return a.stage == 0 ? 0 : of(true, a.stage - 1, a.micro_batch) + message;
    }
    if (a.work == Work::backward_weight) return of(false, a.stage, a.micro_batch);
    const double own = of(true, a.stage, a.micro_batch);
    if (a.stage + 1 == shape_.stages() || std::isnan(own)) return own;
    const double next = of(false, a.stage + 1, a.micro_batch) + message;
    return std::isnan(next) ? next : std::max(own, next);
  }

 private:
  const PipelineShape& shape_;
  std::vector<double> ends_;
};

}  // namespace

PipelineTimes PipelineTimes::even(int stages, double forward, double backward_input, double backward_weight,
                                  double message) {
  const auto count = static_cast<size_t>(stages);
  return {.forward = std::vector<double>(count, forward),
          .backward_input = std::vector<double>(count, backward_input),
          .backward_weight = std::vector<double>(count, backward_weight),
          .message = message};
}

double PipelineTimes::of(const PipelineAction& action) const {
  const auto stage = static_cast<size_t>(action.stage);
  switch (action.work) {
    case Work::forward:
      return forward[stage];
    case Work::backward:
      return backward_input[stage] + backward_weight[stage];
    case Work::backward_input:
      return backward_input[stage];
    case Work::backward_weight:
      return backward_weight[stage];
    default:
      return 0;
  }
}

double PipelineTimeline::busy(int rank) const {
  double sum = 0;
  for (const PipelineSpan& span : ranks[static_cast<size_t>(rank)]) sum += span.end - span.begin;
  return sum;
}

double PipelineTimeline::idle_share() const {
  double sum = 0;
  for (int rank = 0; rank < shape.ranks; ++rank) sum += idle_share(rank);
  return sum / shape.ranks;
}

PipelineTimeline pipeline_timeline(const PipelineWalk& walk, const PipelineTimes& times) {
  const size_t count = walk.ranks.size();
  PipelineTimeline timeline{.shape = walk.shape, .ranks = std::vector<std::vector<PipelineSpan>>(count)};
  Ends ends(walk.shape);
  std::vector<size_t> next(count, 0);
  std::vector<double> clocks(count, 0);
  const auto go_on = [&](size_t rank) {
    const auto& actions = walk.ranks[rank];
    const size_t before = next[rank];
    for (; next[rank] < actions.size(); ++next[rank]) {
      const PipelineAction& a = actions[next[rank]];
      if (!computes(a.work)) continue;
      const double ready = ends.ready(a, times.message);
      if (std::isnan(ready)) break;
      const double begin = std::max(clocks[rank], ready), end = begin + times.of(a);
      if (a.work != Work::backward_weight) ends.of(a.work == Work::forward, a.stage, a.micro_batch) = end;
      timeline.ranks[rank].push_back({a, begin, end});
      clocks[rank] = end;
    }
    return next[rank] > before;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < count; ++rank) moved = go_on(rank) || moved;
  }
  for (size_t rank = 0; rank < count; ++rank) {
    YOKE_ASSERT(next[rank] == walk.ranks[rank].size(), "rank {} waits at action {}", rank, next[rank]);
  }
  timeline.seconds = *std::max_element(clocks.begin(), clocks.end());
  return timeline;
}

std::string pipeline_text(const PipelineTimeline& timeline, double slot, size_t columns) {
  constexpr const char* kLetters[] = {"F", "B", "b", "w"};
  const PipelineShape& shape = timeline.shape;
  for (const auto& spans : timeline.ranks) {
    for (const PipelineSpan& s : spans) {
      if (slot == 0 || s.end - s.begin < slot) slot = s.end - s.begin;
    }
  }
  const auto cell_of = [&](const PipelineAction& a) {
    std::string cell = fmt::format("{}{}", kLetters[static_cast<size_t>(a.work)], a.micro_batch);
    if (shape.pieces > 1) cell += static_cast<char>('a' + shape.piece_of(a.stage) % 26);
    return cell;
  };
  const auto all = static_cast<size_t>(std::llround(timeline.seconds / slot));
  const size_t shown = std::min(all, columns);
  const size_t width = fmt::format("F{}", shape.micro_batches - 1).size() + (shape.pieces > 1 ? 1 : 0);
  std::string text;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::vector<std::string> cells(shown, ".");
    for (const PipelineSpan& s : timeline.ranks[rank]) {
      const auto begin = static_cast<size_t>(std::llround(s.begin / slot));
      const auto end = std::min(shown, static_cast<size_t>(std::llround(s.end / slot)));
      for (size_t c = begin; c < end; ++c) cells[c] = cell_of(s.action);
    }
    text += fmt::format("rank {:<{}}", rank, std::to_string(timeline.ranks.size() - 1).size());
    for (const std::string& cell : cells) text += fmt::format(" {:<{}}", cell, width);
    while (text.back() == ' ') text.pop_back();
    text += shown < all ? " ...\n" : "\n";
  }
  return text;
}

}  // namespace yoke
