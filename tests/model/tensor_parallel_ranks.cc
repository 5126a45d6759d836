// Tensor parallelism on processes that talk through MPI, against the same model on one rank.
#include <gtest/gtest.h>

#include "tests/model/tensor_parallel_support.h"
#include "tests/ranks.h"

namespace yoke::test {
namespace {

/// This rank's gradients against its part of the whole model's, relative to the norm of all of each.
void expect_my_part(const ModelConfig& config, const PassResult& mine, const PassResult& one,
                    const TensorShard& shard) {
  EXPECT_LE(relative_difference(mine.losses, one.losses), 1e-5);
  const ParameterTable local(config, {.tensor = shard});
  for (size_t i = 0; i < local.size(); ++i) {
    std::vector<float> whole = one.gradients[i];
    place(local[i], mine.local[i], whole);  // what others have is right as it is
    EXPECT_LE(relative_difference(whole, one.gradients[i]), 1e-5) << local[i].name;
  }
}

TEST(TensorParallelRanks, LossesAndGradientsAreThoseOfOneRank) {
  const Parallel parallel = mpi().parallel({.tensor = mpi().ranks()});
  for (const NamedModel& model : models()) {
    if (model.config.kv_heads % mpi().ranks() != 0) continue;
    const PassResult one = run_pass(model.config, {}, nullptr);
    for (const Recompute recompute : kRecompute) {
      SCOPED_TRACE(fmt::format("{}, recompute {}", model.name, static_cast<int>(recompute)));
      const PassOptions options{.recompute = recompute};
      const PassResult mine = run_pass(model.config, options, &parallel);
      expect_my_part(model.config, mine, one, shard_of(&parallel[Group::tensor]));
      const Parallel dry = Parallel::dry({.tensor = mpi().ranks()}, mpi().rank());
      const PassResult planned = run_pass(model.config, options, &dry, true);
      EXPECT_EQ(mine.peak, planned.peak);
      EXPECT_DOUBLE_EQ(mine.traffic.bytes, planned.traffic.bytes);
      EXPECT_EQ(mine.traffic.collectives, planned.traffic.collectives);
    }
  }
}

}  // namespace
}  // namespace yoke::test
