// Context parallelism by MPI: every rank also computes the whole by itself and compares.
#include "tests/ranks.h"
#include "tests/train/context_support.h"

namespace yoke {
namespace {

using test::mpi;

TEST(ContextByMpi, GradientsAreThoseOfOneRank) {
  const int ranks = mpi().ranks(), rank = mpi().rank();
  const Parallel parallel = mpi().parallel({.context = ranks});
  const Batch batch = test::packed_batch();
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
      SCOPED_TRACE(fmt::format("{}, recompute {}", name_of(compute), static_cast<int>(recompute)));
      const test::Setting setting{test::tiny_model("Qwen3"), compute, recompute};
      const test::Outcome whole = test::run_rank(setting, batch, batch.supervised, Parallel::self(), false);
      parallel[Group::context].clear_traffic();
      test::Outcome shared =
          test::run_rank(setting, context_part(batch, rank, ranks), batch.supervised, parallel, false);
      std::vector<double> sums{shared.loss};
      for (const auto& gradient : shared.gradients) sums.insert(sums.end(), gradient.begin(), gradient.end());
      parallel.host().all_reduce(sums, Reduction::sum);
      auto at = sums.begin() + 1;
      for (auto& gradient : shared.gradients) {
        std::copy_n(at, gradient.size(), gradient.begin());
        at += static_cast<std::ptrdiff_t>(gradient.size());
      }
      const bool exact = compute == DType::f32;
      EXPECT_NEAR(sums[0], whole.loss, (exact ? 1e-6 : 1e-3) * whole.loss);
      if (exact) {
        EXPECT_LE(test::largest_distance(shared, whole), 1e-5);
      }
      const double passes = recompute == Recompute::none ? 2 : 3;
      EXPECT_EQ(shared.backward_bytes, passes * shared.forward_bytes);
      EXPECT_GT(shared.forward_bytes, 0);
    }
  }
}

TEST(ContextByMpi, StepsAreThoseOfOneRank) {
  const ModelConfig config = test::tiny_model("Llama");
  EngineOptions options{.micro_batch = 2, .sequence_length = test::kContextLength, .micro_batches = 2};
  const test::Steps whole = test::run_steps(config, options, Parallel::self());
  options.mesh = {.context = mpi().ranks()};
  const Parallel parallel = mpi().parallel(options.mesh);
  const test::Steps shared = test::run_steps(config, options, parallel);
  for (size_t i = 0; i < whole.losses.size(); ++i) {
    EXPECT_NEAR(shared.losses[i], whole.losses[i], 1e-4) << i;
    EXPECT_NEAR(shared.norms[i], whole.norms[i], (i == 0 ? 1e-5 : 1e-3) * whole.norms[i]) << i;
  }
  EXPECT_NEAR(shared.evaluation, whole.evaluation, 1e-4 * whole.evaluation);
}

}  // namespace
}  // namespace yoke
