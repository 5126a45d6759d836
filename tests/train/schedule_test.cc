// Learning rates against closed forms, the order of a step, the fp16 loss scale (case 4), and sampling.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "train/learning_rate.h"
#include "train/loss_scaler.h"
#include "train/sampling.h"

namespace yoke {
namespace {

TrainRecipe recipe(ScheduleKind kind, int64_t warmup, std::optional<int64_t> decay) {
  TrainRecipe train;
  train.schedule = kind;
  train.learning_rate = 1e-3;
  train.final_learning_rate = 1e-4;
  train.warmup = warmup;
  train.decay_steps = decay;
  return train;
}

TEST(LearningRate, WarmUpRisesToTheTop) {
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    const TrainRecipe train = recipe(kind, 10, kind == ScheduleKind::wsd ? std::optional<int64_t>(20) : std::nullopt);
    for (int64_t step = 1; step <= 10; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate(train, 100, step), 1e-3 * static_cast<double>(step) / 10);
    }
  }
}

TEST(LearningRate, FloorIsReachedOnTheLastStep) {
  for (const ScheduleKind kind : {ScheduleKind::linear, ScheduleKind::cosine}) {
    EXPECT_DOUBLE_EQ(learning_rate(recipe(kind, 10, {}), 100, 100), 1e-4);
    EXPECT_DOUBLE_EQ(learning_rate(recipe(kind, 0, {}), 7, 7), 1e-4);
  }
  EXPECT_DOUBLE_EQ(learning_rate(recipe(ScheduleKind::wsd, 10, 30), 100, 100), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(recipe(ScheduleKind::constant, 10, {}), 100, 100), 1e-3);
}

TEST(LearningRate, HalfWay) {
  EXPECT_DOUBLE_EQ(learning_rate(recipe(ScheduleKind::linear, 10, {}), 110, 60), 5.5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(recipe(ScheduleKind::cosine, 10, {}), 110, 60), 5.5e-4);
  EXPECT_NEAR(learning_rate(recipe(ScheduleKind::cosine, 0, {}), 100, 25), 1e-4 + 9e-4 * 0.5 * (1 + std::sqrt(0.5)),
              1e-15);
}

TEST(LearningRate, DecayLengthIsSeparateAndTheFloorHolds) {
  const TrainRecipe train = recipe(ScheduleKind::cosine, 10, 40);
  EXPECT_DOUBLE_EQ(learning_rate(train, 1000, 30), 5.5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 1000, 50), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 1000, 999), 1e-4);
}

TEST(LearningRate, WsdIsStableUntilItsDecay) {
  const TrainRecipe train = recipe(ScheduleKind::wsd, 10, 20);
  for (int64_t step = 10; step <= 80; ++step) EXPECT_DOUBLE_EQ(learning_rate(train, 100, step), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(train, 100, 90), 5.5e-4);
}

TEST(LossScaler, HysteresisFirstThenHalves) {
  LossScaler scaler;
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_TRUE(scaler.overflow());
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_TRUE(scaler.overflow());
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_TRUE(scaler.overflow());
  EXPECT_EQ(scaler.scale(), 16384);
}

TEST(LossScaler, DoublesAfterGoodStepsInARow) {
  LossScaler scaler;
  for (int i = 0; i < 999; ++i) scaler.good_step();
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.overflow();
  for (int i = 0; i < 999; ++i) scaler.good_step();
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.good_step();
  EXPECT_EQ(scaler.scale(), 131072);
  EXPECT_EQ(scaler.state().hysteresis, 2);
}

TEST(LossScaler, StopsAtTheLeastScale) {
  LossScaler scaler;
  int overflows = 0;
  while (scaler.overflow()) ++overflows;
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(overflows, 17);  // one of hysteresis, sixteen halvings of 2^16
}

TEST(Sampling, GreedyTakesTheLargest) {
  const std::vector<float> logits{0.1f, 2.0f, -1.0f, 2.0f, 9.0f};
  EXPECT_EQ(sample_token(logits, 5, {.temperature = 0}, 0.5), 4);
  EXPECT_EQ(sample_token(logits, 4, {.temperature = 0}, 0.5), 1);  // ids beyond the tokenizer's are never sampled
}

TEST(Sampling, FrequenciesAreTheSoftmax) {
  const std::vector<float> logits{0.0f, 1.0f, 2.0f};
  const RandomStream random{5, 0};
  for (const double temperature : {1.0, 0.5}) {
    std::map<int32_t, int> counts;
    constexpr int kDraws = 200000;
    for (int i = 0; i < kDraws; ++i) {
      ++counts[sample_token(logits, 3, {.temperature = temperature}, random.uniform(static_cast<uint64_t>(i)))];
    }
    const double sum = 1 + std::exp(1 / temperature) + std::exp(2 / temperature);
    for (int id = 0; id < 3; ++id) {
      const double p = std::exp(id / temperature) / sum;
      EXPECT_NEAR(counts[id] / static_cast<double>(kDraws), p, 5 * std::sqrt(p * (1 - p) / kDraws));
    }
  }
}

TEST(Sampling, TopKAndTopP) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  const auto reached = [&](const SamplingOptions& options) {
    std::map<int32_t, int> ids;
    for (int i = 0; i < 1000; ++i) ++ids[sample_token(logits, 4, options, (i + 0.5) / 1000)];
    return ids.size();
  };
  EXPECT_EQ(reached({}), 4u);
  EXPECT_EQ(reached({.top_k = 2}), 2u);
  EXPECT_EQ(reached({.top_p = 0.79}), 2u);
  EXPECT_EQ(reached({.top_p = 0.81}), 3u);
  EXPECT_EQ(reached({.top_p = 0.0001}), 1u);
  EXPECT_EQ(reached({.top_k = 3, .top_p = 0.84}), 2u);  // 0.8 of the kept 0.95 is 0.842
}

TEST(Sampling, NanIsAnError) {
  const std::vector<float> logits{0.0f, NAN};
  EXPECT_THROW(sample_token(logits, 2, {}, 0.5), UserError);
}

}  // namespace
}  // namespace yoke
