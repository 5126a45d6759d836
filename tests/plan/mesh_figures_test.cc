// Plans of several GPUs against the closed forms: state, activations, messages, and what is said where they don't fit.
#include <map>

#include "plan/memory_plan.h"
#include "plan/report.h"
#include "tests/plan/support.h"

namespace yoke {
namespace {

using Changes = std::map<std::string, std::string>;

const nlohmann::json k8B = test::llama3(4096, 32, 32, 14336), k70B = test::llama3(8192, 80, 64, 28672);
constexpr double kP8B = 8'030'261'248, kP70B = 70'553'706'496;
constexpr double kOutside8B = 2 * 128256.0 * 4096, kLayer8B = 218'112'000;  // embedding and head; a layer

class MeshFigures : public testing::Test {
 protected:
  MemoryPlan plan(const nlohmann::json& config, Changes changes, const char* gpu = "H100 SXM5") {
    write_file(folder_ / "config.json", config.dump());
    changes.try_emplace("train.precision", "bf16");
    changes.try_emplace("data.sequence_length", "4096");
    changes.try_emplace("train.micro_batch", "1");
    std::vector<RecipeOverride> overrides{
        {"model.path", folder_.path().string()}, {"data.train", "none"}, {"train.steps", "1"}};
    for (const auto& [key, value] : changes) overrides.push_back({key, value});
    return plan_memory(parse_recipe("", "test", overrides).recipe, find_gpu(gpu_catalogue(), gpu));
  }
  static std::map<std::string, double> by_kind(const MemoryPlan& p) {
    std::map<std::string, double> sums;
    for (const PlanLine& line : p.lines()) sums[line.kind] += static_cast<double>(line.bytes);
    return sums;
  }
  static double state(const MemoryPlan& p, size_t stage = 0) {
    return static_cast<double>(p.plan.stages.at(stage).state_bytes);
  }
  static double sent(const MemoryPlan& p, Group group) { return p.plan.traffic[static_cast<size_t>(group)].bytes; }

  test::Scratch folder_{test::Scratch::Where::memory};
};

// 18 bytes a parameter (fp32 gradients) alone; 6 + 12/N, 2 + 16/N and 18/N with ZeRO. What is live under 2 and 3: two
// layers and what is outside them, 4 bytes of gradients, and 2 of weights under 3.
TEST_F(MeshFigures, Llama8BOverEightDataRanks) {
  const double live = 2 * kLayer8B + kOutside8B;
  const std::pair<double, double> forms[] = {{18 * kP8B, 2 * 4},
                                             {(6 + 12 / 8.0) * kP8B, 4 + 2},
                                             {(2 + 16 / 8.0) * kP8B + 4 * live, 4 + 2},
                                             {18 / 8.0 * kP8B + 6 * live, 0}};
  for (int zero = 0; zero <= 3; ++zero) {
    const MemoryPlan p =
        plan(k8B, {{"parallel.data", "8"}, {"parallel.zero", std::to_string(zero)}, {"train.global_batch", "8"}});
    const auto& [bytes, sent_a_parameter] = forms[zero];
    EXPECT_NEAR(state(p) / bytes, 1, 1e-3) << zero;
    const double traffic = sent(p, Group::shard) + sent(p, Group::replicas);
    // ZeRO-3: gradients once; weights of every layer for forward and backward, but for two that stay; others once.
    const double expected = zero < 3 ? sent_a_parameter * kP8B : 4 * kP8B + 2 * (62 * kLayer8B + kOutside8B);
    EXPECT_NEAR(traffic / (7 / 8.0 * expected), 1, 1e-3) << zero;
  }
}

// Every matrix and everything saved is divided by t; norms are not.
TEST_F(MeshFigures, Llama8BOverEightTensorRanks) {
  const MemoryPlan p = plan(k8B, {{"parallel.tensor", "8"}, {"memory.recompute", "none"}});
  EXPECT_NEAR(state(p) / (18 * kP8B / 8), 1, 1e-3);
  double table = 0;
  for (const PlanLine& line : p.lines()) {
    const bool statistic = line.name == "lse" || line.name.ends_with("_rstd");
    if (line.kind == "activations, saved" && line.count == 32 && !statistic) table += static_cast<double>(line.bytes);
  }
  EXPECT_EQ(table, 139'264.0 * 4096 * 32 / 8);
  // 4 all-reduces of 2 b s h bytes a layer, and two half ones for weight gradients: 10 halves; embedding and head 4.
  const double half = 7 / 8.0 * 2 * 4096 * 4096;
  EXPECT_NEAR(sent(p, Group::tensor) / ((10 * 32 + 4) * half), 1, 5e-3);
}

// Stages together hold the model once; stage i saves min(m, p - i) micro-batches.
TEST_F(MeshFigures, Llama8BOverFourStages) {
  const MemoryPlan p =
      plan(k8B, {{"parallel.pipeline", "4"}, {"train.global_batch", "8"}, {"memory.recompute", "none"}}, "B200 SXM");
  double all = 0;
  for (size_t s = 0; s < 4; ++s) all += state(p, s);
  EXPECT_NEAR(all / (18 * kP8B), 1, 1e-3);
  ASSERT_TRUE(p.pipeline);
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(p.plan.stages[s].rank, static_cast<int>(s));
    EXPECT_LE(p.plan.stages[s].peak_bytes, p.plan.peak_bytes);
  }
  EXPECT_EQ(p.plan.peak_bytes, p.plan.stages[static_cast<size_t>(p.plan.rank)].peak_bytes);
  // A stage's peak beside its state is at least what it saves: 139,264 bytes a token, layer and micro-batch in flight.
  const int64_t layers[] = {8, 9, 9, 6};  // what is balanced with the head's FLOPs at the end, see the report
  EXPECT_CONTAINS(plan_report(p), "4 stages of 8, 9, 9, 6 layers");
  for (size_t s = 0; s < 4; ++s) {
    const double saved = 139'264.0 * 4096 * static_cast<double>(layers[s]) * static_cast<double>(4 - s);
    const double beside = static_cast<double>(p.plan.stages[s].peak_bytes) - state(p, s);
    EXPECT_GE(beside, saved);
    EXPECT_LE(beside, 1.35 * saved + 0x1p30) << s;
  }
  // 2 b s h a boundary each way; this rank is the first.
  EXPECT_EQ(p.plan.rank, 0);
  EXPECT_DOUBLE_EQ(sent(p, Group::pipeline), 8 * 2.0 * 4096 * 4096);
  for (const char* words :
       {"the table is that of rank 0 (pipeline 0)", "pipeline rank", "sent in a step over pipeline"})
    EXPECT_CONTAINS(plan_report(p), words);
  const nlohmann::json json = plan_json(p);
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["pipeline_ranks"].size(), 4u);
  EXPECT_EQ(json["traffic"]["pipeline"]["bytes"], 8 * 2.0 * 4096 * 4096);
}

// 64 GPUs in eight nodes: tensor inside a node, pipeline and data between them.
TEST_F(MeshFigures, Llama70BOverSixtyFourRanks) {
  const MemoryPlan p = plan(k70B, {{"parallel.data", "2"},
                                   {"parallel.tensor", "8"},
                                   {"parallel.pipeline", "4"},
                                   {"parallel.zero", "1"},
                                   {"train.global_batch", "32"},
                                   {"memory.recompute", "block"}});
  EXPECT_EQ(p.config.parameters(), static_cast<int64_t>(kP70B));
  double all = 0;
  for (size_t s = 0; s < 4; ++s) all += state(p, s);
  EXPECT_NEAR(8 * all / ((6 + 12 / 2.0) * kP70B), 1, 2e-3);
  EXPECT_TRUE(p.fits()) << plan_report(p);
  EXPECT_GT(p.plan.traffic[static_cast<size_t>(Group::tensor)].waited, 0);
  const MemoryPlan fast = [&] {
    MemoryPlan without = p;
    without.links = {};
    without.plan = without.search().plan(p.engine);
    return without;
  }();
  EXPECT_LT(fast.plan.step_seconds, p.plan.step_seconds);
  EXPECT_EQ(fast.plan.peak_bytes, p.plan.peak_bytes);
  // No link is faster than its figure: what is sent within nodes takes at least this long, computation at least that.
  const double wire = sent(p, Group::tensor) / 450e9;
  EXPECT_GE(p.plan.step_seconds, wire);
  EXPECT_CONTAINS(plan_report(p), "NVLink4 + NVSwitch of 450 GB/s each way");
  EXPECT_CONTAINS(plan_report(p), "between nodes, which is assumed, 50 GB/s");
}

// What is offered is planned again: it fits, and takes what was said.
TEST_F(MeshFigures, OffersOfHigherStagesAreTrue) {
  const Changes changes{{"parallel.data", "8"}, {"parallel.zero", "0"}, {"train.global_batch", "8"}};
  const MemoryPlan p = plan(k8B, changes);
  ASSERT_FALSE(p.fits());
  const std::string text = misfit_text(p, "yoke plan it");
  EXPECT_CONTAINS(text, "on rank 0 (data 0)");
  const size_t at = text.find("yoke plan it ");
  ASSERT_NE(at, text.npos) << text;
  std::istringstream flags(text.substr(at + 13, text.find('\n', at) - at - 13));
  Changes offered = changes;
  for (std::string key, value; flags >> key >> value;) offered[key.substr(2)] = value;
  EXPECT_NE(offered["parallel.zero"], "0") << text;
  EXPECT_TRUE(plan(k8B, offered).fits()) << text;
}

TEST_F(MeshFigures, RefusalsNameTheStages) {
  const MemoryPlan p = plan(k8B, {{"parallel.pipeline", "4"}, {"train.global_batch", "4"}}, "L4");
  ASSERT_FALSE(p.fits());
  const std::string text = misfit_text(p, "yoke plan it");
  EXPECT_CONTAINS(text, "for each rank");
  EXPECT_CONTAINS(text, " Of 4 pipeline ranks 0, 1, 2, 3 do not fit.");
}

}  // namespace
}  // namespace yoke
