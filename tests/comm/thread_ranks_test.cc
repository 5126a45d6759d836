// The ranks that other tests run on: every collective against what it has to be, and misuse.
#include "tests/thread_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "device/context.h"

namespace yoke::test {
namespace {

/// A context of its own for the rank that is running.
struct RankContext {
  Device device = Device::cpu(1);
  Stream stream;
  Arena arena;
  Context ctx{device, stream, arena};
};

template <class T>
TensorView view(std::vector<T>& values) {
  return {values.data(), dtype_of<T>::value, {static_cast<int64_t>(values.size())}};
}

TEST(ThreadRanks, EveryCollectiveOfAGroup) {
  run_ranks({.tensor = 4}, [](const Parallel& parallel) {
    RankContext rank;
    Communicator& group = parallel[Group::tensor];
    const auto me = static_cast<float>(group.rank());
    const auto run = [&](Collective c) { group.run(rank.ctx, c); };

    std::vector<float> sum{me, 1};
    run({.kind = CollectiveKind::all_reduce, .input = view(sum)});
    EXPECT_EQ(sum, (std::vector<float>{6, 4}));
    std::vector<int32_t> most{group.rank(), -group.rank()};
    run({.kind = CollectiveKind::all_reduce, .input = view(most), .reduction = Reduction::max});
    EXPECT_EQ(most, (std::vector<int32_t>{3, 0}));

    std::vector<float> one{me * 10}, all(4), piece(1);
    run({.kind = CollectiveKind::all_gather, .input = view(one), .output = view(all)});
    EXPECT_EQ(all, (std::vector<float>{0, 10, 20, 30}));
    all[static_cast<size_t>(me)] += 1;
    run({.kind = CollectiveKind::reduce_scatter, .input = view(all), .output = view(piece)});
    EXPECT_EQ(piece[0], 40 * me + 1);
    std::vector<float> out{me, me + 10, me + 20, me + 30}, in(4);
    run({.kind = CollectiveKind::all_to_all, .input = view(out), .output = view(in)});
    EXPECT_EQ(in, (std::vector<float>{10 * me, 10 * me + 1, 10 * me + 2, 10 * me + 3}));
    std::vector<float> told{me};
    run({.kind = CollectiveKind::broadcast, .input = view(told), .peer = 2});
    EXPECT_EQ(told[0], 2);
    EXPECT_EQ(group.traffic().collectives, 6);
  });
}

TEST(ThreadRanks, SixteenBitSumsAreRoundedAtEachAddition) {
  run_ranks({.data = 3}, [](const Parallel& parallel) {
    RankContext rank;
    std::vector<bf16> values{from_float<bf16>(parallel.mesh().rank() == 0 ? 256.0f : 1.0f)};
    parallel[Group::data].run(rank.ctx, {.kind = CollectiveKind::all_reduce, .input = view(values)});
    EXPECT_EQ(to_float(values[0]), 256);  // 256 + 1 is half way to 258 and goes to the even 256, twice
  });
}

TEST(ThreadRanks, ResultsAppearAtWaitAndSendsMeetTheirReceives) {
  run_ranks({.pipeline = 2}, [](const Parallel& parallel) {
    RankContext rank;
    Communicator& group = parallel[Group::pipeline];
    const int peer = 1 - group.rank();
    std::vector<float> mine{static_cast<float>(group.rank())}, theirs{5};
    const Pending receive =
        group.start(rank.ctx, {.kind = CollectiveKind::receive, .output = view(theirs), .peer = peer});
    const Pending send = group.start(rank.ctx, {.kind = CollectiveKind::send, .input = view(mine), .peer = peer});
    parallel.host().barrier();  // both have started both
    EXPECT_TRUE(std::isnan(theirs[0]));
    group.wait(rank.ctx, receive);
    EXPECT_EQ(theirs[0], static_cast<float>(peer));
    group.wait(rank.ctx, send);
  });
}

TEST(ThreadRanks, HostGroup) {
  run_ranks({.data = 2, .tensor = 2}, [](const Parallel& parallel) {
    const int rank = parallel.mesh().rank();
    EXPECT_EQ(parallel.host().all_gather(std::to_string(rank)), (std::vector<std::string>{"0", "1", "2", "3"}));
    std::vector<double> values{static_cast<double>(rank), 1};
    parallel.host().all_reduce(values, Reduction::sum);
    EXPECT_EQ(values, (std::vector<double>{6, 4}));
    EXPECT_EQ(parallel.host().broadcast(fmt::format("from {}", rank)), "from 0");
  });
}

TEST(ThreadRanks, MisuseAndLossesAreErrors) {
  const auto start = [](Context& ctx, const Parallel& parallel, size_t size) {
    std::vector<float> values(size);
    parallel[Group::data].run(ctx, {.kind = CollectiveKind::all_reduce, .input = view(values)});
  };
  EXPECT_THROW(run_ranks({.data = 2},
                         [&](const Parallel& parallel) {
                           RankContext rank;
                           start(rank.ctx, parallel, 1 + static_cast<size_t>(parallel.mesh().rank()));
                         }),
               std::logic_error);
  EXPECT_THROW(run_ranks({.data = 2},
                         [&](const Parallel& parallel) {
                           RankContext rank;
                           if (parallel.first()) throw std::runtime_error("dies");
                           start(rank.ctx, parallel, 1);
                         }),
               std::runtime_error);
  EXPECT_THROW(run_ranks(
                   {.data = 2},
                   [&](const Parallel& parallel) {
                     RankContext rank;
                     if (!parallel.first()) start(rank.ctx, parallel, 1);
                   },
                   std::chrono::seconds(1)),
               UserError);
}

}  // namespace
}  // namespace yoke::test
