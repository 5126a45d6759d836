// Sequences shared by ranks, beside one rank that has them whole: losses, gradients, traffic, work and memory.
#include <cmath>

#include "tests/thread_ranks.h"
#include "tests/train/context_support.h"

namespace yoke {
namespace {

using test::distance;
using test::largest_distance;
using test::Outcome;
using test::packed_batch;
using test::run_rank;
using test::run_steps;
using test::Setting;
using test::Steps;

constexpr int64_t kLength = test::kContextLength;

Outcome run_whole(const Setting& setting, const Batch& batch) {
  return run_rank(setting, batch, batch.supervised, Parallel::self(), false);
}

/// What every rank has.
std::vector<Outcome> run_parts(const Setting& setting, const Batch& batch, int ranks) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  test::run_ranks({.context = ranks}, [&](const Parallel& parallel) {
    const int rank = parallel.mesh().place().context;
    outcomes[static_cast<size_t>(rank)] =
        run_rank(setting, context_part(batch, rank, ranks), batch.supervised, parallel, false);
  });
  return outcomes;
}

/// All ranks' together.
Outcome added_up(const std::vector<Outcome>& outcomes) {
  Outcome sum = outcomes[0];
  for (size_t rank = 1; rank < outcomes.size(); ++rank) {
    sum.loss += outcomes[rank].loss;
    for (size_t i = 0; i < sum.gradients.size(); ++i) {
      for (size_t j = 0; j < sum.gradients[i].size(); ++j) sum.gradients[i][j] += outcomes[rank].gradients[i][j];
    }
  }
  return sum;
}

void expect_same(const Setting& setting, const Batch& batch) {
  const Outcome whole = run_whole(setting, batch);
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const Outcome shared = added_up(run_parts(setting, batch, ranks));
    EXPECT_NEAR(shared.loss, whole.loss, 1e-6 * whole.loss);
    EXPECT_LE(largest_distance(shared, whole), 1e-5);
  }
}

TEST(Context, GradientsAreThoseOfOneRank) {
  for (const char* family : {"Llama", "Qwen2", "Qwen3"}) {
    SCOPED_TRACE(family);
    expect_same({test::tiny_model(family)}, packed_batch());
    expect_same({test::tiny_model(family)}, packed_batch({{}, {}, {}}, 5));
  }
}

// Windows within a chunk, of several chunks, and of exactly a chunk.
TEST(Context, SlidingWindows) {
  for (const int64_t window : {3, 6, 8, 12, 20, 47}) {
    SCOPED_TRACE(fmt::format("window {}", window));
    const ModelConfig config = test::tiny_model("Mistral", {{"sliding_window", window}});
    ASSERT_EQ(config.window(0), window);
    expect_same({config}, packed_batch());
    expect_same({config}, packed_batch({{}}, 6));
  }
}

TEST(Context, EveryRecomputation) {
  for (const Recompute recompute :
       {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::attention, Recompute::block}) {
    SCOPED_TRACE(static_cast<int>(recompute));
    expect_same({test::tiny_model("Qwen3"), DType::f32, recompute}, packed_batch());
  }
}

// Keys and values of T = b s / c tokens go around c - 1 times in each pass, and their gradients as often in backward.
TEST(Context, TrafficIsTheClosedForm) {
  const Batch batch = packed_batch();
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const int ranks : {2, 3, 4}) {
      for (const Recompute recompute : {Recompute::none, Recompute::attention}) {
        const ModelConfig config = test::tiny_model("Llama");
        const double elements = 2.0 * (ranks - 1) / ranks *
                                static_cast<double>(batch.rows * kLength * config.kv_heads * config.head_dim *
                                                    config.layers * static_cast<int64_t>(size_of(compute)));
        for (const Outcome& outcome : run_parts({config, compute, recompute}, batch, ranks)) {
          EXPECT_DOUBLE_EQ(outcome.forward_bytes, elements);
          EXPECT_DOUBLE_EQ(outcome.backward_bytes, (recompute == Recompute::none ? 2 : 3) * elements);
        }
      }
    }
  }
}

// The dry device allocates and computes what the run does, and gives every rank the same work.
TEST(Context, WorkAndMemoryAreEqualOnAllRanks) {
  const Batch batch = packed_batch({{}, {}}, 8);
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const Setting setting{test::tiny_model("Qwen3"), DType::bf16, Recompute::attention};
    const std::vector<Outcome> real = run_parts(setting, batch, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const Parallel parallel = Parallel::dry({.context = ranks}, rank);
      const Outcome dry = run_rank(setting, context_part(batch, rank, ranks), batch.supervised, parallel, true);
      EXPECT_EQ(dry.peak, real[static_cast<size_t>(rank)].peak);
      EXPECT_EQ(dry.forward_bytes, real[static_cast<size_t>(rank)].forward_bytes);
      EXPECT_EQ(dry.backward_bytes, real[static_cast<size_t>(rank)].backward_bytes);
      EXPECT_EQ(dry.attention_flops, real[static_cast<size_t>(rank)].attention_flops);
      EXPECT_EQ(dry.attention_flops, real[0].attention_flops);
    }
    // Two chunks of queries see all of it, less the half of a triangle that a chunk's own keys lack.
    const double whole = run_whole(setting, batch).attention_flops;
    EXPECT_DOUBLE_EQ(real[0].attention_flops * ranks, whole);
  }
}

// Other tokens in the first document: in no document after it a loss moves.
TEST(Context, PackedDocumentsDoNotSeeEachOther) {
  const Batch batch = packed_batch({{20}, {12, 30}}, 9);
  Batch other = batch;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.key_begin[i] == 0) other.tokens[i] = (batch.tokens[i] + 1) % 256;
  }
  const Setting setting{test::tiny_model("Llama")};
  for (const int ranks : {2, 3, 4}) {
    const std::vector<Outcome> before = run_parts(setting, batch, ranks), after = run_parts(setting, other, ranks);
    int64_t same = 0, moved = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Batch part = context_part(batch, rank, ranks);
      const auto &a = before[static_cast<size_t>(rank)].token_losses,
                 &b = after[static_cast<size_t>(rank)].token_losses;
      for (size_t i = 0; i < a.size(); ++i) {
        if (part.targets[i] < 0) continue;
        if (part.key_begin[i] > 0) {
          EXPECT_EQ(a[i], b[i]) << "rank " << rank << ", token " << i;
          ++same;
        } else {
          moved += a[i] != b[i];
        }
      }
    }
    EXPECT_GT(same, 0);
    EXPECT_GT(moved, 0);
  }
}

// Against fp32. A key's gradient is rounded on every rank that adds to it, so that the square of its error may be as
// many times one rank's; everything else is rounded as often as on one rank.
TEST(Context, RoundsHardlyMoreThanOneRank) {
  const Batch batch = packed_batch({{}, {17}}, 4);
  for (const char* family : {"Llama", "Qwen3"}) {
    const Outcome exact = run_whole({test::tiny_model(family)}, batch);
    for (const DType compute : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(fmt::format("{} {}", family, name_of(compute)));
      const Setting setting{test::tiny_model(family), compute};
      const Outcome whole = run_whole(setting, batch);
      for (const int ranks : {2, 3, 4}) {
        const Outcome shared = added_up(run_parts(setting, batch, ranks));
        for (size_t i = 0; i < exact.gradients.size(); ++i) {
          EXPECT_LE(distance(shared.gradients[i], exact.gradients[i]),
                    std::sqrt(ranks) * distance(whole.gradients[i], exact.gradients[i]))
              << ranks << " ranks, parameter " << i;
        }
      }
    }
  }
}

TEST(Context, StepsAreThoseOfOneRank) {
  const ModelConfig config = test::tiny_model("Qwen2");
  EngineOptions options{.micro_batch = 2, .sequence_length = kLength, .micro_batches = 2};
  const Steps whole = run_steps(config, options, Parallel::self());
  for (const int ranks : {2, 3, 4}) {
    for (const int zero : {0, 3}) {
      SCOPED_TRACE(fmt::format("{} ranks, zero {}", ranks, zero));
      options.mesh = {.context = ranks};
      options.zero = zero;
      test::run_ranks(options.mesh, [&](const Parallel& parallel) {
        const Steps shared = run_steps(config, options, parallel);
        for (size_t i = 0; i < whole.losses.size(); ++i) {
          EXPECT_NEAR(shared.losses[i], whole.losses[i], 1e-4) << i;
          EXPECT_NEAR(shared.norms[i], whole.norms[i], (i == 0 ? 1e-5 : 1e-3) * whole.norms[i]) << i;
        }
        EXPECT_NEAR(shared.evaluation, whole.evaluation, 1e-4 * whole.evaluation);
      });
    }
  }
}

// Ranks of the data axis that all read the same batches change nothing; shards lie over both axes.
TEST(Context, BesideTheDataAxis) {
  const ModelConfig config = test::tiny_model("Qwen3");
  EngineOptions options{.micro_batch = 2, .sequence_length = kLength, .micro_batches = 2};
  const Steps whole = run_steps(config, options, Parallel::self());
  for (const int zero : {1, 2, 3}) {
    options.mesh = {.data = 2, .context = 2, .shard = zero == 3 ? 2 : 0};
    options.zero = zero;
    test::run_ranks(options.mesh, [&](const Parallel& parallel) {
      const Steps shared = run_steps(config, options, parallel);
      for (size_t i = 0; i < whole.losses.size(); ++i) EXPECT_NEAR(shared.losses[i], whole.losses[i], 1e-4) << i;
      EXPECT_NEAR(shared.norms[0], whole.norms[0], 1e-5 * whole.norms[0]);
      EXPECT_NEAR(shared.evaluation, whole.evaluation, 1e-4 * whole.evaluation);
    });
  }
}

TEST(Context, PartsHoldEveryTokenOnce) {
  Batch batch = packed_batch();
  for (size_t i = 0; i < batch.tokens.size(); ++i) batch.tokens[i] = static_cast<int32_t>(i);
  for (const int ranks : {2, 3, 4}) {
    std::vector<int> seen(batch.tokens.size());
    int64_t supervised = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Batch part = context_part(batch, rank, ranks);
      const int64_t chunk = kLength / (2 * ranks);
      ASSERT_EQ(part.rows, 2 * batch.rows);
      ASSERT_EQ(part.length, chunk);
      for (size_t i = 0; i < part.tokens.size(); ++i) {
        const auto from = static_cast<size_t>(part.tokens[i]);
        ++seen[from];
        EXPECT_EQ(part.targets[i], batch.targets[from]);
        EXPECT_EQ(part.positions[i], batch.positions[from]);
        EXPECT_EQ(part.key_begin[i], batch.key_begin[from]);
        const auto at = static_cast<int64_t>(from) % kLength / chunk;
        EXPECT_EQ(at, static_cast<int64_t>(i) < batch.rows * chunk ? rank : 2 * ranks - 1 - rank);
      }
      supervised += part.supervised;
    }
    EXPECT_EQ(supervised, batch.supervised);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(seen.size()));
  }
}

TEST(Context, LengthsThatCannotBeCut) {
  EXPECT_NO_THROW(check_context_split(48, 4));
  EXPECT_NO_THROW(check_context_split(7, 1));
  try {
    check_context_split(1024, 3);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    const std::string text = error.what();
    for (const char* part : {"parallel.context is 3", "1024", "6 chunks", "1, 2, 4, 8", "1020 or 1026"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace yoke
