// What a run does with a given amount of memory: settings that are left open, settings that would fit, refusals.
#include "train/fit.h"

#include <gtest/gtest.h>

#include "tests/train/run_support.h"
#include "train/run_setup.h"

namespace yoke::test {
namespace {

constexpr Recompute kSettings[] = {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::attention,
                                   Recompute::block};
// A slow memory, so that what is saved and what is computed both cost time.
constexpr DeviceRates kRates{.flops_per_second = 1e11, .bytes_per_second = 1e10};

EngineOptions options_of(int64_t micro_batch, int64_t micro_batches) {
  return {.compute = DType::f32, .micro_batch = micro_batch, .sequence_length = 32, .micro_batches = micro_batches};
}

/// Every combination of settings, planned one by one.
std::vector<Fit> all_of(const Device& device, const ModelConfig& config, int64_t global) {
  std::vector<Fit> all;
  for (int64_t micro_batch = 1; micro_batch <= global; ++micro_batch) {
    if (global % micro_batch != 0) continue;
    for (const Recompute setting : kSettings) {
      for (int64_t layers = 1; layers <= (setting == Recompute::none ? 1 : config.layers); ++layers) {
        EngineOptions options = options_of(micro_batch, global / micro_batch);
        options.recompute = setting;
        options.recompute_layers = layers;
        all.push_back({options, plan_engine(device, config, options, kRates)});
      }
    }
  }
  return all;
}

TEST(FitSearch, FindsTheFastestOfAllThatFit) {
  const Device device = Device::cpu(2);
  const ModelConfig config = tiny_model("Llama", {{"num_hidden_layers", 5}, {"intermediate_size", 96}});
  const std::vector<Fit> all = all_of(device, config, 12);
  size_t least = SIZE_MAX, most = 0;
  for (const Fit& fit : all) {
    least = std::min(least, fit.plan.peak_bytes);
    most = std::max(most, fit.plan.peak_bytes);
  }
  for (int i = 0; i <= 40; ++i) {
    const double budget = static_cast<double>(least) + static_cast<double>(most - least) * i / 40;
    double fastest = INFINITY;
    for (const Fit& fit : all) {
      if (static_cast<double>(fit.plan.peak_bytes) <= budget) fastest = std::min(fastest, fit.plan.step_seconds);
    }
    const FitSearch search(device, config, kRates, budget);
    const auto found = search.fastest(options_of(1, 12), {.recompute = true, .micro_batch = true});
    ASSERT_TRUE(found) << budget;
    EXPECT_LE(static_cast<double>(found->plan.peak_bytes), budget);
    EXPECT_LE(found->plan.step_seconds, 1.01 * fastest) << budget;
    EXPECT_EQ(found->options.micro_batch * found->options.micro_batches, 12);
    // What it returns is what those options take.
    EXPECT_EQ(search.plan(found->options).peak_bytes, found->plan.peak_bytes);
  }
  const FitSearch none(device, config, kRates, static_cast<double>(least) - 1);
  EXPECT_FALSE(none.fastest(options_of(1, 12), {.recompute = true, .micro_batch = true}));
  EXPECT_EQ(none.smallest(options_of(12, 1), {.recompute = true, .micro_batch = true}).plan.peak_bytes, least);
}

TEST(FitSearch, ChangesOnlyWhatIsFree) {
  const Device device = Device::cpu(1);
  const ModelConfig config = tiny_model("Llama", {{"num_hidden_layers", 4}});
  EngineOptions options = options_of(6, 2);
  const size_t whole = plan_engine(device, config, options).peak_bytes;
  const FitSearch search(device, config, kRates, static_cast<double>(whole) - 1);
  const auto recomputed = search.fastest(options, {.recompute = true});
  ASSERT_TRUE(recomputed);
  EXPECT_EQ(recomputed->options.micro_batch, 6);
  EXPECT_NE(recomputed->options.recompute, Recompute::none);
  EXPECT_GE(recomputed->options.recompute_layers, 1);
  const auto smaller = search.fastest(options, {.micro_batch = true});
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->options.micro_batch, 4);
  EXPECT_EQ(smaller->options.micro_batches, 3);
  EXPECT_EQ(smaller->options.recompute, Recompute::none);
  EXPECT_FALSE(search.fastest(options, {}));
  EXPECT_EQ(recipe_flags(config, options, smaller->options), "--train.micro_batch 4");
}

/// Runs with a limit in bytes on the process. What the process holds besides the arena moves by a few pages from run to
/// run, so a limit is set relative to what a dry run of the same recipe plans.
class Limited : public RunTest {
 protected:
  Limited() {
    write_config("deep", {{"num_hidden_layers", 8},
                          {"hidden_size", 256},
                          {"intermediate_size", 1024},
                          {"head_dim", 64},
                          {"max_position_embeddings", 1024}});
    write_file(folder_ / "long.txt", tiny_text(400000));
  }
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "AddressSanitizer holds freed memory back, so that what the process holds is not what yoke takes";
#endif
  }

  Overrides deep(const Overrides& more = {}) const {
    Overrides all{{"model.path", at("deep")}, {"data.train", at("long.txt")}, {"data.sequence_length", "128"},
                  {"train.micro_batch", "8"}, {"train.global_batch", "16"},   {"train.steps", "2"},
                  {"train.warmup", "0"},      {"memory.recompute", "none"},   {"checkpoint.every", "0"},
                  {"evaluate.every", "0"}};
    for (const auto& [key, value] : more) all[key] = value;
    return all;
  }
  nlohmann::json predicted(const std::string& output) const {
    return nlohmann::json::parse(read_file(folder_ / output / "plan.json")).at("predicted");
  }
  /// What the process may hold so that the arena gets `bytes`.
  std::string limit_for_arena(double bytes) {
    EXPECT_EQ(run(deep({{"output", at("planned")}}), "none", true).code, 0);
    const nlohmann::json plan = predicted("planned");
    return std::to_string(
        static_cast<int64_t>(plan.at("resident_bytes").get<double>() - plan.at("peak_bytes").get<double>() + bytes));
  }
  double arena_of(const Overrides& overrides) {
    EXPECT_EQ(run(deep(overrides), "none", true).code, 0);
    return predicted("run").at("peak_bytes").get<double>();
  }
  int try_offers(const Ending& refused);
  std::vector<double> losses(const std::string& output) const {
    std::vector<double> losses;
    for (const auto& line : metrics_of(folder_ / output)) {
      if (line.contains("loss")) losses.push_back(line.at("loss"));
    }
    return losses;
  }
};

TEST_F(Limited, AutoRecomputesJustEnoughAndChangesNoBit) {
  const double whole = arena_of({}), least = arena_of({{"memory.recompute", "block"}});
  ASSERT_LT(least, 0.7 * whole);
  expect_done(deep({{"output", at("plain")}}));
  const std::string limit = limit_for_arena((whole + least) / 2);
  expect_done(deep({{"memory.recompute", "auto"}, {"memory.limit", limit}, {"output", at("auto")}}));
  EXPECT_EQ(losses("auto"), losses("plain"));
  const nlohmann::json plan = predicted("auto");
  EXPECT_LE(plan.at("peak_bytes").get<double>(), (whole + least) / 2 + (4 << 20));
}

TEST_F(Limited, MicroBatchAutoTakesTheLargestThatFits) {
  const double one = arena_of({{"train.micro_batch", "1"}}), four = arena_of({{"train.micro_batch", "4"}});
  const Overrides open{{"train.micro_batch", "auto"}, {"output", at("auto")}};
  Overrides limited = open;
  limited["memory.limit"] = limit_for_arena(four + 0.1 * (four - one));
  const Ending ending = run(deep(limited));
  ASSERT_EQ(ending.code, 0) << ending.message;
  EXPECT_EQ(predicted("auto").at("peak_bytes").get<double>(), four);
  EXPECT_EQ(predicted("auto").at("settings").at("micro_batch"), 4);
  // With more memory a larger one would fit, but a resumed run keeps its own.
  Overrides longer = open;
  longer["train.steps"] = "3";
  ASSERT_EQ(run(deep(longer), "auto").code, 0);
  EXPECT_EQ(predicted("auto").at("settings").at("micro_batch"), 4);
}

/// Runs every command that a refusal offers, as a dry run; their number.
int Limited::try_offers(const Ending& refused) {
  std::istringstream lines(refused.message);
  int offers = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t command = line.find("yoke train " + at("recipe.yaml"));
    if (command == line.npos) continue;
    EXPECT_CONTAINS(line, "x the time");
    // The command holds what was asked for and the change; later options replace earlier ones.
    Overrides overrides;
    std::istringstream words(line.substr(command));
    for (std::string word, value; words >> word;) {
      if (word.starts_with("--") && words >> value) overrides[word.substr(2)] = value;
    }
    overrides["output"] = at(fmt::format("offer{}", ++offers));
    const Ending ending = run(overrides, "none", true);
    EXPECT_EQ(ending.code, 0) << line << ending.message;
  }
  return offers;
}

TEST_F(Limited, ARefusalOffersSettingsThatWork) {
  const double whole = arena_of({}), least = arena_of({{"memory.recompute", "block"}, {"train.micro_batch", "1"}});
  const std::string limit = limit_for_arena(least + 0.3 * (whole - least));
  for (const Overrides& more : {Overrides{},
                                {{"memory.recompute", "norms"}, {"memory.recompute_layers", "3"}},
                                {{"memory.loss_chunks", "1024"}}}) {
    Overrides overrides = deep(more);
    overrides["memory.limit"] = limit;
    const Ending refused = run(overrides);
    ASSERT_EQ(refused.code, 3) << refused.message;
    EXPECT_CONTAINS(refused.message, "memory.limit is");
    EXPECT_GE(try_offers(refused), 2) << refused.message;
  }
}

TEST_F(Limited, CheaperFormatsAreOfferedWhereNothingElseFits) {
  const Overrides smallest{{"memory.recompute", "block"}, {"train.micro_batch", "1"}};
  Overrides int8 = smallest;
  int8["memory.moments"] = "int8";
  const double plain = arena_of(smallest), cheap = arena_of(int8);
  const Ending refused = run(deep({{"memory.limit", limit_for_arena((plain + 3 * cheap) / 4)}}));
  ASSERT_EQ(refused.code, 3);
  EXPECT_CONTAINS(refused.message, "--memory.moments int8");
  EXPECT_EQ(try_offers(refused), 1);
}

// Another process takes memory between the plan and the start: here the limit falls.
TEST_F(Limited, WhatIsFreeIsLookedAtAgainBeforeTheStart) {
  RunSetup setup = set_up(load_recipe(at("recipe.yaml")));
  require_memory(setup);
  setup.loaded.recipe.memory.limit = static_cast<int64_t>(setup.budget.outside() + setup.plan.peak_bytes) - 1;
  const std::string message = error_of([&] { require_memory(setup); }, ExitCode::does_not_fit);
  EXPECT_CONTAINS(message, "memory.limit is");
}

TEST_F(Limited, ALimitBelowTheSmallestRunSaysWhatThatTakes) {
  const Ending refused = run(deep({{"memory.limit", "1MiB"}, {"memory.recompute", "auto"}}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_CONTAINS(refused.message, "the smallest run");
  EXPECT_CONTAINS(refused.message, "--train.micro_batch 1");
  // Nothing was written.
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(Limited, OpenSettingsThatMakeNoSense) {
  expect_refused(ExitCode::usage, deep({{"memory.recompute", "auto"}, {"memory.recompute_layers", "3"}}),
                 {"memory.recompute_layers is 3", "memory.recompute is auto"});
  expect_refused(ExitCode::usage, deep({{"memory.recompute", "block"}, {"memory.recompute_layers", "9"}}),
                 {"memory.recompute_layers is 9", "8 layers"});
  expect_refused(ExitCode::usage, deep({{"memory.limit", "12 apples"}}), {"memory.limit is '12 apples'", "24GiB"});
}

TEST_F(Limited, LayersAreADial) {
  double before = arena_of({{"memory.recompute", "block"}, {"memory.recompute_layers", "1"}});
  for (const int layers : {2, 4, 7, 8}) {
    const double now = arena_of({{"memory.recompute", "block"}, {"memory.recompute_layers", std::to_string(layers)}});
    EXPECT_LT(now, before) << layers;
    before = now;
  }
  EXPECT_EQ(before, arena_of({{"memory.recompute", "block"}}));
  EXPECT_EQ(arena_of({{"memory.recompute", "block"}, {"memory.recompute_layers", "0"}}), arena_of({}));
}

}  // namespace
}  // namespace yoke::test
