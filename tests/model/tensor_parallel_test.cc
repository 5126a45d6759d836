// Tensor parallelism on ranks that are threads, against the same model on one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/tensor_parallel_support.h"
#include "tests/thread_ranks.h"

namespace yoke::test {
namespace {

/// What every rank found, gathered from its threads.
std::vector<PassResult> on_ranks(const ModelConfig& config, const PassOptions& options, int ranks) {
  std::vector<PassResult> results(static_cast<size_t>(ranks));
  run_ranks({.tensor = ranks}, [&](const Parallel& parallel) {
    results[static_cast<size_t>(parallel.mesh().rank())] = run_pass(config, options, &parallel);
  });
  return results;
}

void expect_same_step(const ModelConfig& config, const PassOptions& options, int ranks, const PassResult& one) {
  const std::vector<PassResult> results = on_ranks(config, options, ranks);
  const ParameterTable table(config);
  std::vector<std::vector<float>> gradients(table.size());
  for (int r = 0; r < ranks; ++r) {
    const PassResult& result = results[static_cast<size_t>(r)];
    EXPECT_LE(relative_difference(result.losses, one.losses), 1e-5);
    EXPECT_EQ(result.losses, results[0].losses) << "every rank has the same losses";
    const ParameterTable local(config, {.tensor = {r, ranks}});
    for (size_t i = 0; i < table.size(); ++i) {
      place(local[i], result.local[i], gradients[i]);
      if (local[i].split == ParameterRow::Split::none) {
        EXPECT_EQ(result.local[i], results[0].local[i]) << local[i].name;
      }
      const auto padding = static_cast<size_t>(local[i].pad_rows() * local[i].shape_cols());
      const std::vector<float> tail(result.local[i].end() - static_cast<std::ptrdiff_t>(padding),
                                    result.local[i].end());
      EXPECT_EQ(tail, std::vector<float>(padding, 0)) << local[i].name << ": padding has a gradient";
    }
  }
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_LE(relative_difference(gradients[i], one.gradients[i]), 1e-5) << table[i].name;
  }
}

class TensorParallel : public testing::TestWithParam<NamedModel> {};

TEST_P(TensorParallel, LossesAndGradientsAreThoseOfOneRank) {
  const ModelConfig& config = GetParam().config;
  const PassResult one = run_pass(config, {}, nullptr);
  for (const int ranks : {2, 4}) {
    if (config.kv_heads % ranks != 0) continue;
    for (const Recompute recompute : kRecompute) {
      SCOPED_TRACE(fmt::format("{} ranks, recompute {}", ranks, static_cast<int>(recompute)));
      expect_same_step(config, {.recompute = recompute}, ranks, one);
    }
  }
}

TEST_P(TensorParallel, ChunksOfTheLossAndRecomputedLayersDontMatter) {
  const ModelConfig& config = GetParam().config;
  const PassResult one = run_pass(config, {}, nullptr);
  for (const int64_t chunk : {1, 5, 32}) {
    expect_same_step(config, {.recompute = Recompute::block, .recompute_layers = 1, .chunk = chunk}, 2, one);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallel, testing::ValuesIn(models()),
                         [](const auto& info) { return info.param.name; });

// What a rank sends on the tensor axis. A = (t - 1)/t T h elements. A layer's forward pass gathers twice and scatters
// twice, its backward pass the same mirrored: the 4 all-reduces of the closed form, 8 A. Beyond it the inputs of two
// products are gathered again for their weight gradients, 2 A. Recomputation repeats the gather of what it recomputes,
// all of a block the scatter of the attention's output as well, but not that of the MLP's.
TEST(TensorParallelTraffic, FollowsTheClosedForm) {
  const ModelConfig config = small_model(4);
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const int t : {2, 4}) {
      for (const Recompute recompute : kRecompute) {
        const PassOptions o{.compute = compute, .recompute = recompute};
        const double tokens = static_cast<double>(o.tokens());
        const double all_reduce =
            2.0 * (t - 1) / t * tokens * static_cast<double>(config.hidden) * static_cast<double>(size_of(compute));
        const double again = recompute == Recompute::mlp || recompute == Recompute::attention ? 1
                             : recompute == Recompute::block                                  ? 3
                                                                                              : 0;
        const double layer = (4 + (2 + again) / 2) * all_reduce;
        const double ends = 2 * all_reduce;            // embedding and head, forward and backward
        const double sums = (t - 1) * tokens * 4 * 8;  // of logits
        const double expected =
            static_cast<double>(o.micro_batches) * (static_cast<double>(config.layers) * layer + ends + sums);
        for (const PassResult& result : on_ranks(config, o, t)) EXPECT_DOUBLE_EQ(result.traffic.bytes, expected);
        const Parallel dry = Parallel::dry({.tensor = t}, t - 1);
        EXPECT_DOUBLE_EQ(run_pass(config, o, &dry, true).traffic.bytes, expected);
      }
    }
  }
}

TEST(TensorParallelMemory, IsThatOfTheDryDeviceToTheByte) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const Recompute recompute : kRecompute) {
      const PassOptions o{.compute = compute, .recompute = recompute};
      const std::vector<PassResult> results = on_ranks(small_model(), o, 2);
      for (int r = 0; r < 2; ++r) {
        const Parallel dry = Parallel::dry({.tensor = 2}, r);
        EXPECT_EQ(results[static_cast<size_t>(r)].peak, run_pass(small_model(), o, &dry, true).peak);
      }
    }
  }
}

// A communicator that is alone changes nothing: same bits, same bytes.
TEST(TensorParallelAlone, IsOneRank) {
  const PassResult one = run_pass(small_model(), {}, nullptr);
  const Parallel self = Parallel::self();
  const PassResult alone = run_pass(small_model(), {}, &self);
  EXPECT_EQ(alone.losses, one.losses);
  EXPECT_EQ(alone.gradients, one.gradients);
  EXPECT_EQ(alone.peak, one.peak);
  EXPECT_EQ(alone.traffic, Traffic{});
}

// Local tensors tile the whole model's: every element is somewhere once, or everywhere where the tensor isn't split.
TEST(TensorParallelTable, TilesTheWholeModel) {
  for (const NamedModel& model : models()) {
    const ParameterTable whole(model.config);
    for (const int t : {1, 2, 4}) {
      if (model.config.kv_heads % t != 0) continue;
      std::vector<std::vector<int>> times(whole.size());
      for (size_t i = 0; i < whole.size(); ++i) times[i].resize(static_cast<size_t>(whole[i].shape.elements()));
      for (int r = 0; r < t; ++r) {
        const ParameterTable local(model.config, {.tensor = {r, t}});
        ASSERT_EQ(local.size(), whole.size());
        for (size_t i = 0; i < whole.size(); ++i) {
          const ParameterRow& row = local[i];
          EXPECT_EQ(row.whole, whole[i].shape);
          EXPECT_EQ(row.id, i);
          int64_t file = 0;  // rows of the parts' tensors before this one
          for (size_t p = 0; p < row.parts.size(); ++p) {
            const ParameterPart &part = row.parts[p], &full = whole[i].parts[p];
            EXPECT_EQ(part.name, full.name);
            EXPECT_EQ(part.file_rows, full.rows);
            EXPECT_EQ(part.whole_row, file + part.file_row);
            file += full.rows;
            for (int64_t k = 0; k < part.rows; ++k) {
              for (int64_t c = 0; c < row.shape_cols(); ++c) {
                const int64_t cols = whole[i].shape_cols();
                ++times[i][static_cast<size_t>((part.whole_row + k) * cols + row.first_col + c)];
              }
            }
          }
        }
      }
      for (size_t i = 0; i < whole.size(); ++i) {
        const int expected = whole[i].split == ParameterRow::Split::none ? t : 1;
        for (const int count : times[i]) ASSERT_EQ(count, expected) << whole[i].name;
      }
    }
  }
}

TEST(TensorParallelTable, InitialValuesAreThoseOfOneRank) {
  for (const NamedModel& model : models()) {
    const auto values = [&](const TensorShard& shard) {
      RankMemory memory(false);
      const ParameterTable table(model.config, {.tensor = shard});
      const ParameterBuffers buffers(memory.arena, "weight", table, DType::f32, MemoryKind::weights);
      for (size_t i = 0; i < table.size(); ++i) fill(memory.ctx, {.y = buffers[i], .value = NAN});
      const auto all = [&](size_t row) { return ElementRange{0, table[row].shape.elements()}; };
      initialise_parameters(memory.ctx, model.config, table, buffers, all, 5);
      std::vector<std::vector<float>> local;
      for (size_t i = 0; i < table.size(); ++i) local.push_back(downloaded<float>(memory.ctx, buffers[i]));
      // The same in shards that end within a row.
      for (const auto& [from, to] : {std::pair{0.0, 0.3}, {0.3, 0.31}, {0.31, 1.0}}) {
        ArenaScope scope(memory.arena);
        std::vector<TensorView> shard;
        const auto owned = [&, from = from, to = to](size_t row) {
          const auto n = static_cast<double>(table[row].shape.elements());
          return ElementRange{static_cast<int64_t>(n * from), static_cast<int64_t>(n * to)};
        };
        for (size_t i = 0; i < table.size(); ++i) {
          const int64_t n = owned(i).size();
          shard.push_back(n == 0 ? TensorView{} : memory.arena.allocate("shard", DType::f32, {n}));
        }
        initialise_parameters(memory.ctx, model.config, table, ParameterBuffers(shard), owned, 5);
        for (size_t i = 0; i < table.size(); ++i) {
          if (shard[i].absent()) continue;
          const std::vector<float> values = downloaded<float>(memory.ctx, shard[i]);
          EXPECT_TRUE(std::equal(values.begin(), values.end(), local[i].begin() + owned(i).begin)) << table[i].name;
        }
      }
      return local;
    };
    const auto whole = values({});
    for (const int t : {2, 4}) {
      if (model.config.kv_heads % t != 0) continue;
      std::vector<std::vector<float>> placed(whole.size());
      for (int r = 0; r < t; ++r) {
        const ParameterTable table(model.config, {.tensor = {r, t}});
        const auto local = values({r, t});
        for (size_t i = 0; i < table.size(); ++i) {
          for (const float value : local[i]) ASSERT_TRUE(std::isfinite(value)) << table[i].name;
          place(table[i], local[i], placed[i]);
        }
      }
      EXPECT_EQ(placed, whole);
    }
  }
}

}  // namespace
}  // namespace yoke::test
