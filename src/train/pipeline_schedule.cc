#include "train/pipeline_schedule.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace yoke {

namespace {

using Work = PipelineWork;
using Actions = std::vector<PipelineAction>;

bool is_backward(Work work) { return work == Work::backward || work == Work::backward_input; }

/// Between whom a message goes, and what it is. `stage` is the one that reads it.
struct Message {
  int from = 0, to = 0;
  PipelineAction receive;
  bool exists = false;
};

Message sent_by(const PipelineShape& shape, const PipelineAction& a) {
  if (a.work == Work::forward && a.stage + 1 < shape.stages()) {
    return {shape.rank_of(a.stage),
            shape.rank_of(a.stage + 1),
            {Work::receive_activation, a.stage + 1, a.micro_batch},
            true};
  }
  if (is_backward(a.work) && a.stage > 0) {
    return {
        shape.rank_of(a.stage), shape.rank_of(a.stage - 1), {Work::receive_gradient, a.stage - 1, a.micro_batch}, true};
  }
  return {};
}

Message read_by(const PipelineShape& shape, const PipelineAction& a) {
  if (a.work == Work::forward && a.stage > 0) {
    return {
        shape.rank_of(a.stage - 1), shape.rank_of(a.stage), {Work::receive_activation, a.stage, a.micro_batch}, true};
  }
  if (is_backward(a.work) && a.stage + 1 < shape.stages()) {
    return {shape.rank_of(a.stage + 1), shape.rank_of(a.stage), {Work::receive_gradient, a.stage, a.micro_batch}, true};
  }
  return {};
}

std::tuple<Work, int, int> key(const PipelineAction& a) { return {a.work, a.stage, a.micro_batch}; }

/// Puts sends behind what makes them, and receives one computation ahead of what reads them: early enough to overlap
/// with it, late enough to need little room. What the same rank sends before has to be received before.
PipelineWalk with_messages(const PipelineShape& shape, const std::vector<Actions>& computations) {
  std::map<std::pair<int, int>, Actions> coming;  // receives of (from, to), in the order of sending
  std::map<std::tuple<Work, int, int>, size_t> place_of;
  for (const Actions& actions : computations) {
    for (const PipelineAction& a : actions) {
      const Message message = sent_by(shape, a);
      if (!message.exists) continue;
      Actions& order = coming[{message.from, message.to}];
      place_of[key(message.receive)] = order.size();
      order.push_back(message.receive);
    }
  }
  PipelineWalk walk{.shape = shape, .ranks = std::vector<Actions>(computations.size())};
  for (size_t rank = 0; rank < computations.size(); ++rank) {
    Actions& out = walk.ranks[rank];
    std::map<int, size_t> received;  // by sender
    const auto receive = [&](const Message& message) {
      if (!message.exists) return;
      const Actions& order = coming.at({message.from, message.to});
      const size_t place = place_of.at(key(message.receive));
      for (size_t& next = received[message.from]; next <= place; ++next) out.push_back(order[next]);
    };
    const Actions& actions = computations[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      if (i == 0) receive(read_by(shape, actions[0]));
      if (i + 1 < actions.size()) receive(read_by(shape, actions[i + 1]));
      out.push_back(actions[i]);
      if (sent_by(shape, actions[i]).exists) {
        out.push_back({actions[i].work == Work::forward ? Work::send_activation : Work::send_gradient, actions[i].stage,
                       actions[i].micro_batch});
      }
    }
  }
  return walk;
}

}  // namespace

PipelineWalk one_f_one_b(int ranks, int micro_batches) { return interleaved(ranks, 1, micro_batches); }

PipelineWalk interleaved(int ranks, int pieces, int micro_batches) {
  YOKE_ASSERT(ranks > 0 && pieces > 0 && micro_batches > 0 && (pieces == 1 || ranks > 1));
  const PipelineShape shape{ranks, pieces, micro_batches};
  // Groups of `ranks` micro-batches visit one piece after the other. With one piece groups make no difference;
  // otherwise the last one is filled up with micro-batches that are left out below: no rank then waits for another's
  // order.
  const int rounded = pieces == 1 ? micro_batches : (micro_batches + ranks - 1) / ranks * ranks;
  std::vector<Actions> computations(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    Actions forward, backward;
    for (int first = 0; first < rounded; first += ranks) {
      for (int piece = 0; piece < pieces; ++piece) {
        for (int m = first; m < std::min(first + ranks, rounded); ++m) {
          forward.push_back({Work::forward, piece * ranks + rank, m});
          backward.push_back({Work::backward, (pieces - 1 - piece) * ranks + rank, m});
        }
      }
    }
    const int behind = ranks - 1 - rank;
    const size_t ahead =
        std::min(forward.size(), static_cast<size_t>(pieces == 1 ? behind : 2 * behind + (pieces - 1) * ranks));
    Actions& out = computations[static_cast<size_t>(rank)];
    const auto add = [&](const PipelineAction& a) {
      if (a.micro_batch < micro_batches) out.push_back(a);
    };
    for (size_t i = 0; i < ahead; ++i) add(forward[i]);
    for (size_t i = 0; i < backward.size(); ++i) {
      if (ahead + i < forward.size()) add(forward[ahead + i]);
      add(backward[i]);
    }
  }
  return with_messages(shape, computations);
}

PipelineWalk zero_bubble(int ranks, int micro_batches) {
  YOKE_ASSERT(ranks > 0 && micro_batches > 0);
  const PipelineShape shape{ranks, 1, micro_batches};
  std::vector<Actions> computations(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& out = computations[static_cast<size_t>(rank)];
    int forward = 0, weight = 0;
    while (forward < std::min(micro_batches, ranks - 1 - rank)) out.push_back({Work::forward, rank, forward++});
    for (int m = 0; m < micro_batches; ++m) {
      if (forward < micro_batches) out.push_back({Work::forward, rank, forward++});
      out.push_back({Work::backward_input, rank, m});
      // Rank i holds i micro-batches fewer than the first rank, so that many may wait for their weight gradients.
      if (m - weight >= rank) out.push_back({Work::backward_weight, rank, weight++});
    }
    while (weight < micro_batches) out.push_back({Work::backward_weight, rank, weight++});
  }
  return with_messages(shape, computations);
}

PipelineWalk pipeline_walk(PipelineSchedule schedule, const PipelineShape& shape) {
  YOKE_ASSERT(shape.pieces == 1 || schedule == PipelineSchedule::interleaved);
  switch (schedule) {
    case PipelineSchedule::one_f_one_b:
      return one_f_one_b(shape.ranks, shape.micro_batches);
    case PipelineSchedule::interleaved:
      return interleaved(shape.ranks, shape.pieces, shape.micro_batches);
    case PipelineSchedule::zero_bubble:
      return zero_bubble(shape.ranks, shape.micro_batches);
  }
  YOKE_ASSERT(false);
}

PipelineRoom pipeline_room(const PipelineWalk& walk, int rank) {
  const PipelineShape& shape = walk.shape;
  const auto pieces = static_cast<size_t>(shape.pieces);
  PipelineRoom most{.micro_batches = std::vector<int>(pieces)}, now = most;
  const auto more = [](int& count, int& peak) { peak = std::max(peak, ++count); };
  for (const PipelineAction& a : walk.ranks[static_cast<size_t>(rank)]) {
    const auto piece = static_cast<size_t>(shape.piece_of(a.stage));
    const bool first = a.stage == 0, last = a.stage + 1 == shape.stages();
    switch (a.work) {
      case Work::receive_activation:
        more(now.inputs, most.inputs);
        break;
      case Work::forward:
        more(now.micro_batches[piece], most.micro_batches[piece]);
        if (!first) --now.inputs;
        break;
      case Work::receive_gradient:
        more(now.gradients, most.gradients);
        break;
      case Work::backward_input:
        more(now.deferred, most.deferred);
        break;
      case Work::backward:
      case Work::backward_weight:
        --now.micro_batches[piece];
        if (!last) --now.gradients;
        if (a.work == Work::backward_weight) --now.deferred;
        break;
      case Work::send_activation:
      case Work::send_gradient:
        break;
    }
  }
  return most;
}

}  // namespace yoke
