// Pipelines in plans: what stages take, and the picture.
#include "plan/schedule_picture.h"

#include <gtest/gtest.h>

#include "train/engine_plan.h"
#include "train/pipeline_cost.h"
#include "train/pipeline_stages.h"

namespace yoke {
namespace {

ModelConfig config() {
  return {.vocabulary = 512,
          .hidden = 64,
          .layers = 8,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .mlp = 160,
          .max_positions = 256};
}

EngineOptions options(PipelineSchedule schedule, int virtual_stages = 1) {
  return {.micro_batch = 2,
          .sequence_length = 128,
          .micro_batches = 8,
          .mesh = {.pipeline = 4},
          .schedule = schedule,
          .virtual_stages = virtual_stages};
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Products alone, at one FLOP a second: forward is the closed form's, backward twice that.
TEST(PipelineCost, IsThatOfTheStagesWork) {
  const ModelConfig model = config();
  const EngineOptions engine = options(PipelineSchedule::zero_bubble);
  const PipelineTimes times = pipeline_times(Device::cpu(1), model, engine, {});
  const PipelineCosts costs = pipeline_costs(model, engine.sequence_length);
  const std::vector<int64_t> layers = balance_layers(model.layers, 4, costs);
  for (size_t stage = 0; stage < 4; ++stage) {
    const double forward = 256 * static_cast<double>(layers[stage]) * costs.layer;
    EXPECT_NEAR(times.forward[stage] / forward, 1, 0.1) << stage;
    const double head = stage == 3 ? 256 * 3 * costs.head : 0;
    EXPECT_NEAR((times.backward_input[stage] + times.backward_weight[stage]) / (2 * forward + head), 1, 0.15) << stage;
    EXPECT_GT(times.backward_weight[stage], 0.5 * forward) << stage;
  }
}

TEST(PipelineCost, TheStepOfAPlanWaitsForOtherStages) {
  EngineOptions engine = options(PipelineSchedule::one_f_one_b);
  const DeviceRates rates{.flops_per_second = 1e9};
  const PipelineTimeline timeline = pipeline_timeline_of(Device::cpu(1), config(), engine, rates);
  for (int rank = 0; rank < 4; ++rank) {
    const double seconds = plan_engine(Device::cpu(1), config(), engine, rates, rank).step_seconds;
    EXPECT_GE(seconds, timeline.seconds);
    EXPECT_LE(seconds, 1.1 * timeline.seconds);  // the update comes on top
  }
}

TEST(SchedulePicture, HasABoxForEveryComputation) {
  for (const auto& [schedule, pieces, computations] : {std::tuple(PipelineSchedule::one_f_one_b, 1, 4 * 8 * 2),
                                                       std::tuple(PipelineSchedule::interleaved, 2, 4 * 8 * 4),
                                                       std::tuple(PipelineSchedule::zero_bubble, 1, 4 * 8 * 3)}) {
    const PipelineTimeline timeline = pipeline_timeline_of(Device::cpu(1), config(), options(schedule, pieces), {});
    const std::string picture = schedule_picture(timeline, "a <model>", "FLOPs");
    EXPECT_EQ(count_of(picture, "stroke=\"#ffffff\" stroke-width=\"0.5\""), 4u + static_cast<size_t>(computations));
    EXPECT_EQ(count_of(picture, "<svg"), 1u);
    EXPECT_EQ(count_of(picture, "</svg>"), 1u);
    EXPECT_NE(picture.find("a &lt;model&gt;"), std::string::npos);
    EXPECT_NE(picture.find(fmt::format("{:.1f} %", 100 * timeline.idle_share(2))), std::string::npos);
  }
}

}  // namespace
}  // namespace yoke
