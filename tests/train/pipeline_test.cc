// Pipelines of ranks that are threads, against one rank that does the same step.
#include <cmath>
#include <map>
#include <mutex>

#include "tests/thread_ranks.h"
#include "tests/train/support.h"

namespace yoke {
namespace {

using test::random_batch;

constexpr int64_t kRows = 2, kSteps = 3;

struct Layout {
  MeshSizes mesh{};
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int virtual_stages = 1;
  int zero = 0;
};

/// What a run shows of itself.
struct Outcome {
  std::vector<StepResult> steps;
  std::map<std::string, std::string> gradients;  ///< of the first step, bytes by row; whole ones only
  std::map<std::string, std::string> weights;    ///< after the last step; likewise
  double evaluation = 0;
};

std::string bytes_of(const TensorView& t) { return {static_cast<const char*>(t.data), t.bytes()}; }

std::string text_of(const EngineOptions& o) {
  return fmt::format("{} stages x {}, schedule {}, {} micro-batches, recompute {}, data {}, zero {}", o.mesh.pipeline,
                     o.virtual_stages, static_cast<int>(o.schedule), o.micro_batches, static_cast<int>(o.recompute),
                     o.mesh.data, o.zero);
}

/// The same batches for everybody: data place d takes micro-batches d, d + data, ...
std::vector<Batch> batches(int64_t micro_batches, uint64_t step) {
  std::vector<Batch> all;
  for (int64_t m = 0; m < micro_batches; ++m) {
    all.push_back(random_batch(kRows, 11 + 3 * m, 100 * step + static_cast<uint64_t>(m)));
  }
  return all;
}

Outcome outcome_of(const ModelConfig& config, const EngineOptions& options) {
  Outcome all;
  std::mutex mutex;
  test::run_ranks(options.mesh, [&](const Parallel& parallel) {
    const MeshPlace& place = parallel.mesh().place();
    const Device device = Device::cpu(1);
    const EnginePlan plan = plan_engine(device, config, options, {}, parallel.mesh().rank());
    const MemoryBlock block(plan.peak_bytes);
    std::memset(block.data(), 0xff, block.bytes());  // NaN
    Arena arena(block.data(), block.bytes());
    Stream stream;
    Context ctx{device, stream, arena};
    Engine engine(ctx, config, options, parallel);
    engine.initialise(ctx, 1);
    Outcome mine;
    const ParameterTable& table = engine.transformer().parameters();
    const auto collect = [&](const ParameterBuffers& from, std::map<std::string, std::string>& to) {
      for (size_t i = 0; i < table.size(); ++i) {
        if (!from[i].absent()) to[table[i].name + (table[i].copy ? " copy" : "")] = bytes_of(from[i]);
      }
    };
    for (uint64_t step = 0; step < kSteps; ++step) {
      std::vector<Batch> own;
      const std::vector<Batch> global = batches(options.micro_batches * options.mesh.data, step);
      for (size_t m = static_cast<size_t>(place.data); m < global.size(); m += static_cast<size_t>(options.mesh.data)) {
        own.push_back(global[m]);
      }
      // By Adam's usual epsilon a first update is about the gradient's sign, so that rounding of small ones decides.
      mine.steps.push_back(
          engine.step(ctx, own, {.learning_rate = 1e-2, .epsilon = 1e-5, .step = static_cast<int64_t>(step) + 1}));
      if (step == 0) collect(engine.gradients(), mine.gradients);
    }
    mine.evaluation = engine.evaluate(ctx, random_batch(kRows, 20, 77));
    collect(engine.master(), mine.weights);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(arena.peak(), plan.peak_bytes) << "rank " << parallel.mesh().rank();
    if (all.steps.empty()) all.steps = mine.steps;
    for (size_t s = 0; s < kSteps; ++s) {
      EXPECT_EQ(mine.steps[s].loss_sum, all.steps[s].loss_sum);
      EXPECT_EQ(mine.steps[s].gradient_norm, all.steps[s].gradient_norm);
    }
    if (all.evaluation == 0) all.evaluation = mine.evaluation;
    EXPECT_EQ(mine.evaluation, all.evaluation);
    all.gradients.merge(mine.gradients);
    all.weights.merge(mine.weights);
  });
  return all;
}

/// Relative difference of two arrays of floats.
double difference(const std::string& a, const std::string& b) {
  const auto *x = reinterpret_cast<const float*>(a.data()), *y = reinterpret_cast<const float*>(b.data());
  double error = 0, square = 0;
  for (size_t i = 0; i < a.size() / sizeof(float); ++i) {
    error += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    square += std::pow(static_cast<double>(y[i]), 2);
  }
  return std::sqrt(error / square);
}

void expect_close_steps(const Outcome& got, const Outcome& want) {
  for (size_t s = 0; s < kSteps; ++s) {
    EXPECT_NEAR(got.steps[s].loss_sum, want.steps[s].loss_sum, 1e-5 * want.steps[s].loss_sum) << s;
    EXPECT_NEAR(got.steps[s].gradient_norm, want.steps[s].gradient_norm, 1e-5 * want.steps[s].gradient_norm) << s;
  }
}

ModelConfig model(bool tied, const char* family = "Llama") {
  return test::tiny_model(family, {{"num_hidden_layers", 8}, {"tie_word_embeddings", tied}});
}

EngineOptions options_of(const Layout& layout, int64_t micro_batches, Recompute recompute = Recompute::none) {
  return {.micro_batch = kRows,
          .sequence_length = test::kBatchLength,
          .micro_batches = micro_batches,
          .recompute = recompute,
          .mesh = layout.mesh,
          .zero = layout.zero,
          .schedule = layout.schedule,
          .virtual_stages = layout.virtual_stages};
}

std::vector<Layout> pipelines(int ranks) {
  const MeshSizes mesh{.pipeline = ranks};
  return {{mesh, PipelineSchedule::one_f_one_b},
          {mesh, PipelineSchedule::interleaved, 2},
          {mesh, PipelineSchedule::zero_bubble}};
}

/// Untied, a pipeline does the same sums in the same order: the same bits.
TEST(Pipeline, StepsAreThoseOfOneRank) {
  const ModelConfig config = model(false);
  for (const int64_t micro_batches : {1, 3, 8}) {
    for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::block}) {
      const Outcome want = outcome_of(config, options_of({}, micro_batches, recompute));
      for (const int ranks : {2, 3, 4}) {
        for (const Layout& layout : pipelines(ranks)) {
          const EngineOptions options = options_of(layout, micro_batches, recompute);
          SCOPED_TRACE(text_of(options));
          const Outcome got = outcome_of(config, options);
          EXPECT_EQ(got.gradients.size(), want.gradients.size());
          EXPECT_TRUE(got.gradients == want.gradients);
          EXPECT_TRUE(got.weights == want.weights);
          EXPECT_EQ(got.evaluation, want.evaluation);
          for (size_t s = 0; s < kSteps; ++s) {
            EXPECT_EQ(got.steps[s].loss_sum, want.steps[s].loss_sum);
            EXPECT_NEAR(got.steps[s].gradient_norm, want.steps[s].gradient_norm, 1e-12 * want.steps[s].gradient_norm);
          }
        }
      }
    }
  }
}

TEST(Pipeline, TiedEmbeddingsStayTheSameBits) {
  const ModelConfig config = model(true);
  const Outcome want = outcome_of(config, options_of({}, 4));
  for (const int ranks : {2, 3, 4}) {
    for (const Layout& layout : pipelines(ranks)) {
      const EngineOptions options = options_of(layout, 4);
      SCOPED_TRACE(text_of(options));
      Outcome got = outcome_of(config, options);
      EXPECT_TRUE(got.weights.at("embedding") == got.weights.at("embedding copy"));
      EXPECT_TRUE(got.gradients.at("embedding") == got.gradients.at("embedding copy"));
      for (const auto& [row, bytes] : want.gradients) EXPECT_LE(difference(got.gradients.at(row), bytes), 1e-5) << row;
      expect_close_steps(got, want);
    }
  }
}

TEST(Pipeline, GoesWithDataParallelAndZero) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = model(tied, "Qwen3");
    const Outcome want = outcome_of(config, options_of({}, 6));
    for (Layout layout : pipelines(2)) {
      for (layout.zero = 0; layout.zero <= 3; ++layout.zero) {
        layout.mesh.data = 2;
        const EngineOptions options = options_of(layout, 3);
        SCOPED_TRACE(text_of(options));
        const Outcome got = outcome_of(config, options);
        expect_close_steps(got, want);
        EXPECT_NEAR(got.evaluation, want.evaluation, 1e-5 * want.evaluation);
      }
    }
  }
}

TEST(Pipeline, GoesWithTensorParallel) {
  const ModelConfig config = model(true, "Qwen2");
  const Outcome want = outcome_of(config, options_of({}, 3));
  for (Layout layout : pipelines(2)) {
    layout.mesh.tensor = 2;
    const EngineOptions options = options_of(layout, 3);
    SCOPED_TRACE(text_of(options));
    const Outcome got = outcome_of(config, options);
    expect_close_steps(got, want);
    EXPECT_NEAR(got.evaluation, want.evaluation, 1e-5 * want.evaluation);
  }
}

// An epoch's last step may have fewer micro-batches, and those fewer rows.
TEST(Pipeline, TakesShorterSteps) {
  const ModelConfig config = model(false, "Qwen2");
  std::vector<Batch> few = batches(2, 0);
  few.push_back(random_batch(1, 5, 9));
  const auto losses = [&](const EngineOptions& options) {
    double loss = 0;
    test::run_ranks(options.mesh, [&](const Parallel& parallel) {
      const Device device = Device::cpu(1);
      const MemoryBlock block(plan_engine(device, config, options, {}, parallel.mesh().rank()).peak_bytes);
      Arena arena(block.data(), block.bytes());
      Stream stream;
      Context ctx{device, stream, arena};
      Engine engine(ctx, config, options, parallel);
      engine.initialise(ctx, 1);
      engine.step(ctx, few, {.learning_rate = 1e-2});
      const StepResult result = engine.step(ctx, few, {.learning_rate = 1e-2, .step = 2});
      if (parallel.first()) loss = result.loss_sum;
    });
    return loss;
  };
  const double want = losses(options_of({}, 8));
  for (const Layout& layout : pipelines(3)) EXPECT_EQ(losses(options_of(layout, 8)), want);
}

}  // namespace
}  // namespace yoke
