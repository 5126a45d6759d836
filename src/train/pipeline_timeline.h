// When a pipeline schedule does what: its length, its bubble, and its picture in text.
#pragma once

#include <string>
#include <vector>

#include "train/pipeline_schedule.h"

namespace yoke {

/// Seconds, or any unit, of a micro-batch in each virtual stage.
struct PipelineTimes {
  std::vector<double> forward, backward_input, backward_weight;
  double message = 0;  ///< from the end of what makes it until it can be read

  /// All stages alike.
  static PipelineTimes even(int stages, double forward, double backward_input, double backward_weight,
                            double message = 0);
  double of(const PipelineAction& action) const;  ///< 0 for messages
};

struct PipelineSpan {
  PipelineAction action;
  double begin = 0, end = 0;
};

struct PipelineTimeline {
  PipelineShape shape;
  std::vector<std::vector<PipelineSpan>> ranks;  ///< computations in order
  double seconds = 0;                            ///< from the first start to the last end

  double busy(int rank) const;
  /// Share of the time in which a rank stands still.
  double idle_share(int rank) const { return (seconds - busy(rank)) / seconds; }
  /// The bubble: the mean share over all ranks.
  double idle_share() const;
};

/// Every rank does what its list says as soon as it can. An assertion where ranks wait for each other.
PipelineTimeline pipeline_timeline(const PipelineWalk& walk, const PipelineTimes& times);

/// A line a rank, a column a slot of `slot` time (0: the shortest computation), at most `columns` of them: F3 is the
/// forward of micro-batch 3, B backward, b and w its halves for inputs and for weights; with several pieces a letter
/// follows, a for the first: F3a. Dots are idle.
std::string pipeline_text(const PipelineTimeline& timeline, double slot = 0, size_t columns = 64);

}  // namespace yoke
