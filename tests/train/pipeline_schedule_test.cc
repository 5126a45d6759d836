// Pipeline schedules against the closed forms of their papers, and against a walk of ranks that wait for each other.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <set>

#include "base/error.h"
#include "train/pipeline_stages.h"
#include "train/pipeline_timeline.h"

namespace yoke {
namespace {

using Work = PipelineWork;

/// Every schedule of up to 8 ranks and 4 pieces.
void for_each_walk(const std::function<void(PipelineSchedule, const PipelineWalk&)>& body) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 20; ++m) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", p, m));
      body(PipelineSchedule::one_f_one_b, one_f_one_b(p, m));
      body(PipelineSchedule::zero_bubble, zero_bubble(p, m));
      for (int v = 2; p > 1 && v <= 4; ++v) body(PipelineSchedule::interleaved, interleaved(p, v, m));
    }
  }
}

TEST(PipelineSchedule, OfOneRankIsForwardAndBackwardInTurn) {
  const std::vector<PipelineAction> want{
      {Work::forward, 0, 0}, {Work::backward, 0, 0}, {Work::forward, 0, 1}, {Work::backward, 0, 1}};
  EXPECT_EQ(one_f_one_b(1, 2).ranks.at(0), want);
}

TEST(PipelineSchedule, IsWrittenOut) {
  const std::vector<PipelineAction> want{{Work::receive_activation, 1, 0},
                                         {Work::receive_activation, 1, 1},
                                         {Work::forward, 1, 0},
                                         {Work::send_activation, 1, 0}};
  const PipelineWalk walk = one_f_one_b(3, 4);
  EXPECT_EQ(std::vector(walk.ranks[1].begin(), walk.ranks[1].begin() + 4), want);
}

/// Each computation once, and after everything of its own rank that it needs.
TEST(PipelineSchedule, DoesEverythingOnceAndInOrder) {
  for_each_walk([](PipelineSchedule schedule, const PipelineWalk& walk) {
    const bool split = schedule == PipelineSchedule::zero_bubble;
    const PipelineShape& shape = walk.shape;
    std::set<std::tuple<Work, int, int>> done;
    const auto was = [&](Work work, const PipelineAction& a) { return done.contains({work, a.stage, a.micro_batch}); };
    for (int rank = 0; rank < shape.ranks; ++rank) {
      std::map<std::pair<bool, int>, int> last;  // micro-batches of a stage keep their order: sums do not depend on p
      for (const PipelineAction& a : walk.ranks[static_cast<size_t>(rank)]) {
        ASSERT_EQ(shape.rank_of(a.stage), rank);
        ASSERT_TRUE(done.insert({a.work, a.stage, a.micro_batch}).second);
        if (a.work == Work::forward && a.stage > 0) {
          ASSERT_TRUE(was(Work::receive_activation, a));
        }
        if (a.work == Work::send_activation) {
          ASSERT_TRUE(was(Work::forward, a));
        }
        if (a.work == Work::backward || a.work == Work::backward_input) {
          ASSERT_TRUE(was(Work::forward, a));
          if (a.stage + 1 < shape.stages()) {
            ASSERT_TRUE(was(Work::receive_gradient, a));
          }
        }
        if (a.work == Work::backward_weight) {
          ASSERT_TRUE(was(Work::backward_input, a));
        }
        if (a.work == Work::send_gradient) {
          ASSERT_TRUE(was(split ? Work::backward_input : Work::backward, a));
        }
        if (a.work == Work::backward || a.work == Work::backward_weight) {
          const auto [at, first] = last.insert({{true, a.stage}, -1});
          ASSERT_GT(a.micro_batch, at->second);
          at->second = a.micro_batch;
        }
      }
    }
    size_t computations = 0, receives = 0, sends = 0;
    for (const auto& [work, stage, m] : done) {
      computations += computes(work);
      receives += work == Work::receive_activation || work == Work::receive_gradient;
      sends += work == Work::send_activation || work == Work::send_gradient;
    }
    const auto pairs = static_cast<size_t>(shape.stages() * shape.micro_batches);
    EXPECT_EQ(computations, (split ? 3 : 2) * pairs);
    const size_t messages = 2 * static_cast<size_t>((shape.stages() - 1) * shape.micro_batches);
    EXPECT_EQ(receives, messages);
    EXPECT_EQ(sends, messages);
  });
}

/// Ranks whose sends, too, wait for the other side: nothing is buffered on the way. `wait` returns when all that the
/// rank started before is done.
class Rendezvous {
 public:
  explicit Rendezvous(const PipelineWalk& walk) : walk_(walk), ranks_(walk.ranks.size()) {}

  /// Whether every rank comes to its end.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) moved = go_on(rank) || moved;
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].next < walk_.ranks[rank].size() || !all_done(rank, ranks_[rank].started.size())) return false;
    }
    return true;
  }
  bool matched() const { return matched_; }

 private:
  struct Started {
    int peer;
    bool sends;
    PipelineAction what;  // as the receiver calls it
    bool done = false;
  };
  struct Rank {
    size_t next = 0;
    std::vector<Started> started;
    std::map<std::tuple<Work, int, int>, size_t> receive;  // index into started
    std::deque<size_t> sends;
  };

  bool all_done(size_t rank, size_t count) const {
    for (size_t i = 0; i < count; ++i) {
      if (!ranks_[rank].started[i].done) return false;
    }
    return true;
  }

  void match(size_t rank, size_t index) {
    Started& own = ranks_[rank].started[index];
    for (Started& other : ranks_[static_cast<size_t>(own.peer)].started) {
      if (other.done || other.peer != static_cast<int>(rank) || other.sends == own.sends) continue;
      matched_ = matched_ && other.what == own.what;
      own.done = other.done = true;
      return;
    }
  }

  void start(size_t rank, int peer, bool sends, const PipelineAction& what) {
    ranks_[rank].started.push_back({peer, sends, what});
    match(rank, ranks_[rank].started.size() - 1);
  }

  bool go_on(size_t at) {
    Rank& rank = ranks_[at];
    const PipelineShape& shape = walk_.shape;
    const size_t before = rank.next;
    for (; rank.next < walk_.ranks[at].size(); ++rank.next) {
      const PipelineAction& a = walk_.ranks[at][rank.next];
      switch (a.work) {
        case Work::receive_activation:
        case Work::receive_gradient:
          rank.receive[{a.work, a.stage, a.micro_batch}] = rank.started.size();
          start(at, shape.rank_of(a.stage + (a.work == Work::receive_activation ? -1 : 1)), false, a);
          break;
        case Work::send_activation:
        case Work::send_gradient: {
          // One buffer for sends of each kind: the one before has to be gone.
          const bool activation = a.work == Work::send_activation;
          for (size_t i = rank.started.size(); i-- > 0;) {
            if (rank.started[i].sends && (rank.started[i].what.work == Work::receive_activation) == activation) {
              if (!all_done(at, i + 1)) return rank.next > before;
              break;
            }
          }
          const int stage = a.stage + (activation ? 1 : -1);
          start(at, shape.rank_of(stage), true,
                {activation ? Work::receive_activation : Work::receive_gradient, stage, a.micro_batch});
          break;
        }
        case Work::backward_weight:
          break;
        default: {
          const Work work = a.work == Work::forward ? Work::receive_activation : Work::receive_gradient;
          const auto receive = rank.receive.find({work, a.stage, a.micro_batch});
          if (receive != rank.receive.end() && !all_done(at, receive->second + 1)) return rank.next > before;
        }
      }
    }
    return rank.next > before;
  }

  const PipelineWalk& walk_;
  std::vector<Rank> ranks_;
  bool matched_ = true;
};

TEST(PipelineSchedule, NeverDeadlocks) {
  for_each_walk([](PipelineSchedule, const PipelineWalk& walk) {
    Rendezvous ranks(walk);
    EXPECT_TRUE(ranks.run()) << walk.shape.pieces << " pieces";
    EXPECT_TRUE(ranks.matched()) << walk.shape.pieces << " pieces";
  });
}

// The walk that finds deadlocks has to find one.
TEST(PipelineSchedule, DeadlocksAreFound) {
  PipelineWalk walk = one_f_one_b(2, 1);
  EXPECT_TRUE(Rendezvous(walk).run());
  walk.ranks[0] = {
      {Work::receive_gradient, 0, 0}, {Work::backward, 0, 0}, {Work::forward, 0, 0}, {Work::send_activation, 0, 0}};
  EXPECT_FALSE(Rendezvous(walk).run());
}

TEST(PipelineSchedule, BubblesAreThoseOfTheClosedForms) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = p; m <= 24; ++m) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", p, m));
      const double bubble = (p - 1.0) / (m + p - 1);
      const PipelineTimeline plain = pipeline_timeline(one_f_one_b(p, m), PipelineTimes::even(p, 1, 1, 1));
      EXPECT_NEAR(plain.idle_share(), bubble, 1e-12);
      // A third of the idle time.
      const PipelineTimeline split = pipeline_timeline(zero_bubble(p, m), PipelineTimes::even(p, 1, 1, 1));
      for (int rank = 0; rank < p; ++rank) {
        EXPECT_DOUBLE_EQ(split.seconds - split.busy(rank), (plain.seconds - plain.busy(rank)) / 3);
      }
      for (int v = 2; p > 1 && v <= 4 && m % p == 0; ++v) {
        const PipelineTimeline pieces = pipeline_timeline(interleaved(p, v, m), PipelineTimes::even(p * v, 1, 1, 1));
        EXPECT_NEAR((pieces.seconds - pieces.busy(0)) / pieces.busy(0), (p - 1.0) / (v * m), 1e-12);
      }
    }
  }
}

TEST(PipelineSchedule, HoldsWhatTheClosedFormsSay) {
  for_each_walk([](PipelineSchedule schedule, const PipelineWalk& walk) {
    const auto [p, v, m] = walk.shape;
    for (int rank = 0; rank < p; ++rank) {
      const PipelineRoom room = pipeline_room(walk, rank);
      int most = 0;
      for (int piece = 0; piece < v; ++piece) {
        most += room.micro_batches[static_cast<size_t>(piece)];
      }
      if (schedule == PipelineSchedule::one_f_one_b) {
        EXPECT_EQ(most, std::min(m, p - rank));
        EXPECT_LE(room.inputs, 2);
        EXPECT_LE(room.gradients, 2);
        EXPECT_EQ(room.deferred, 0);
      } else if (schedule == PipelineSchedule::zero_bubble) {
        EXPECT_EQ(most, std::min(m, p));
        EXPECT_LE(room.inputs, 2);
        EXPECT_EQ(room.deferred, std::min(m, rank + 1));
      } else if (m % p == 0 && rank == 0) {
        // Pieces reach their peaks at different times, so that room by piece may be more than what is held at once.
        EXPECT_GE(most, std::min(v * m, p * v + p - 1));
        EXPECT_LE(most, std::min(v * m, v * (p + p - 1)));
      }
    }
  });
}

// A step of fewer micro-batches, such as an epoch's last, fits into the memory of a full one.
TEST(PipelineSchedule, FewerMicroBatchesNeedNoMoreRoom) {
  for_each_walk([](PipelineSchedule schedule, const PipelineWalk& walk) {
    PipelineShape fewer = walk.shape;
    if (--fewer.micro_batches == 0) return;
    const PipelineWalk shorter = pipeline_walk(schedule, fewer);
    for (int rank = 0; rank < fewer.ranks; ++rank) {
      const PipelineRoom all = pipeline_room(walk, rank), less = pipeline_room(shorter, rank);
      for (size_t piece = 0; piece < all.micro_batches.size(); ++piece) {
        EXPECT_LE(less.micro_batches[piece], all.micro_batches[piece]);
      }
      EXPECT_LE(less.inputs, all.inputs);
      EXPECT_LE(less.gradients, all.gradients);
      EXPECT_LE(less.deferred, all.deferred);
    }
  });
}

TEST(PipelineTimeline, CountsMessagesAndUnevenStages) {
  // One micro-batch goes through all stages and back.
  PipelineTimes times{.forward = {1, 2, 3}, .backward_input = {1, 2, 3}, .backward_weight = {1, 2, 3}, .message = 0.5};
  EXPECT_DOUBLE_EQ(pipeline_timeline(one_f_one_b(3, 1), times).seconds, 6 + 12 + 4 * 0.5);
  // The slowest stage works through, from its first activation on to the first stage's end.
  times.message = 0;
  EXPECT_DOUBLE_EQ(pipeline_timeline(one_f_one_b(3, 10), times).seconds, 1 + 2 + 10 * 9 + 2 * 2 + 2 * 1);
}

TEST(PipelineTimeline, IsDrawnInText) {
  EXPECT_EQ(pipeline_text(pipeline_timeline(one_f_one_b(2, 3), PipelineTimes::even(2, 1, 1, 1))),
            "rank 0 F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2\n"
            "rank 1 .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .\n");
  EXPECT_EQ(pipeline_text(pipeline_timeline(zero_bubble(2, 2), PipelineTimes::even(2, 1, 1, 1))),
            "rank 0 F0 F1 .  b0 w0 b1 w1\n"
            "rank 1 .  F0 b0 F1 b1 w0 w1\n");
  EXPECT_EQ(pipeline_text(pipeline_timeline(interleaved(2, 2, 2), PipelineTimes::even(4, 1, 1, 0)), 0, 4),
            "rank 0 F0a F1a F0b F1b ...\n"
            "rank 1 .   F0a F1a F0b ...\n");
}

TEST(PipelineStages, AreBalanced) {
  using Layers = std::vector<int64_t>;
  EXPECT_EQ(balance_layers(8, 1, {}), Layers{8});
  EXPECT_EQ(balance_layers(8, 4, {}), (Layers{2, 2, 2, 2}));
  EXPECT_EQ(balance_layers(10, 4, {}), (Layers{2, 2, 3, 3}));
  EXPECT_EQ(balance_layers(10, 4, {.head = 1}), (Layers{2, 3, 3, 2}));
  EXPECT_EQ(balance_layers(8, 2, {.head = 2}), (Layers{5, 3}));
  EXPECT_EQ(balance_layers(4, 4, {.head = 20}), (Layers{1, 1, 1, 1}));
  EXPECT_EQ(balance_layers(9, 3, {.embedding = 2, .head = 4}), (Layers{3, 5, 1}));
}

/// All cuts of `layers` into what is left of `stages`.
void for_each_cut(int64_t layers, int64_t stages, std::vector<int64_t>& cut,
                  const std::function<void(const std::vector<int64_t>&)>& body) {
  if (stages == 1) {
    cut.push_back(layers);
    body(cut);
    cut.pop_back();
    return;
  }
  for (int64_t n = 1; n <= layers - (stages - 1); ++n) {
    cut.push_back(n);
    for_each_cut(layers - n, stages - 1, cut, body);
    cut.pop_back();
  }
}

TEST(PipelineStages, NoCutIsCheaper) {
  for (const PipelineCosts& costs : {PipelineCosts{}, PipelineCosts{0, 1, 0.4}, PipelineCosts{0.3, 1, 2.5}}) {
    for (int64_t layers = 1; layers <= 12; ++layers) {
      for (int64_t stages = 1; stages <= std::min<int64_t>(layers, 6); ++stages) {
        const auto worth = [&](const std::vector<int64_t>& cut) {
          double most = 0, squares = 0;
          for (size_t s = 0; s < cut.size(); ++s) {
            const double cost =
                static_cast<double>(cut[s]) + (s == 0 ? costs.embedding : 0) + (s + 1 == cut.size() ? costs.head : 0);
            most = std::max(most, cost);
            squares += cost * cost;
          }
          return std::pair(most, squares);
        };
        const auto got = worth(balance_layers(layers, stages, costs));
        std::vector<int64_t> cut;
        for_each_cut(layers, stages, cut, [&](const std::vector<int64_t>& other) {
          EXPECT_LE(got.first, worth(other).first + 1e-9);
          if (worth(other).first <= got.first) {
            EXPECT_LE(got.second, worth(other).second + 1e-9);
          }
        });
      }
    }
  }
}

TEST(PipelineStages, NeedALayerEach) {
  try {
    balance_layers(3, 4, {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("4 stages, but the model has 3 layers"), std::string::npos);
  }
}

}  // namespace
}  // namespace yoke
