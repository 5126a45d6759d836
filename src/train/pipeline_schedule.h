// Pipeline schedules as plain data: for each rank the list of what it does in a step, which Engine::step walks and the
// planner prints and times.
#pragma once

#include <cstddef>
#include <vector>

#include "train/recipe.h"

namespace yoke {

enum class PipelineWork {
  forward,
  backward,            ///< input and weight gradients together
  backward_input,      ///< what the stage before waits for
  backward_weight,     ///< the rest, some time after backward_input
  send_activation,     ///< after forward: starts to send what the next stage reads
  receive_activation,  ///< starts to receive it; the stage's forward waits for it
  send_gradient,       ///< after backward or backward_input, to the stage before
  receive_gradient,
};

/// Whether a rank computes in it; the others start messages, which take no time of the rank's.
constexpr bool computes(PipelineWork work) { return work <= PipelineWork::backward_weight; }

struct PipelineAction {
  PipelineWork work = PipelineWork::forward;
  int stage = 0;  ///< virtual stage of the rank that acts
  int micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// Virtual stages are dealt out in turn: stage s is piece s / ranks of rank s % ranks.
struct PipelineShape {
  int ranks = 1;
  int pieces = 1;  ///< virtual stages of a rank
  int micro_batches = 1;

  int stages() const { return ranks * pieces; }
  int rank_of(int stage) const { return stage % ranks; }
  int piece_of(int stage) const { return stage / ranks; }
  bool operator==(const PipelineShape&) const = default;
};

/// A step of all ranks. Messages between two ranks are received in the order in which they are sent, and a receive is
/// started at the latest when the computation before its reader begins.
struct PipelineWalk {
  PipelineShape shape;
  std::vector<std::vector<PipelineAction>> ranks;
};

/// One forward, one backward (Narayanan et al. 2019, 2021): rank i of p holds min(m, p - i) micro-batches at most and
/// stands still for (p - 1) / (m + p - 1) of the step. One rank: forward and backward of each micro-batch in turn.
PipelineWalk one_f_one_b(int ranks, int micro_batches);

/// The same over virtual stages (Narayanan et al. 2021): idle for (p - 1) / (v m) of the time of the work where p
/// divides m; other m take about the time of the next multiple. Several pieces need several ranks.
PipelineWalk interleaved(int ranks, int pieces, int micro_batches);

/// ZB-H1 (Qi et al. 2023): weight gradients fill the gaps. Idle for a third of the time of one_f_one_b() where forward
/// and the two halves of backward take equally long, with no more micro-batches at a time than its first rank holds.
PipelineWalk zero_bubble(int ranks, int micro_batches);

/// `pieces` above 1 for `interleaved` alone.
PipelineWalk pipeline_walk(PipelineSchedule schedule, const PipelineShape& shape);

/// How many of each a rank needs room for at the same time.
struct PipelineRoom {
  std::vector<int> micro_batches;  ///< by piece: from the start of forward to the end of backward
  int inputs = 0;                  ///< from the start of receiving to the end of forward
  int gradients = 0;               ///< from the start of receiving to the end of backward
  int deferred = 0;                ///< between backward_input and backward_weight, both included
};
PipelineRoom pipeline_room(const PipelineWalk& walk, int rank);

}  // namespace yoke
