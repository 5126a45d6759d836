// Plans against closed forms, and what sizes that can't be computed with lead to.
#include "plan/memory_plan.h"

#include <map>

#include "plan/memory_picture.h"
#include "plan/report.h"
#include "tests/plan/support.h"

namespace yoke {
namespace {

using test::error_of;

const nlohmann::json kLlama8B = test::llama3(4096, 32, 32, 14336);

class Plans : public testing::Test {
 protected:
  MemoryPlan plan(const nlohmann::json& config, const std::map<std::string, std::string>& changes = {},
                  const char* gpu = "H200 SXM") {
    write_file(folder_ / "config.json", config.dump());
    std::vector<RecipeOverride> overrides{
        {"model.path", folder_.path().string()}, {"data.train", "none"}, {"train.steps", "1"}};
    for (const auto& [key, value] : changes) overrides.push_back({key, value});
    const Recipe recipe = parse_recipe("", "test", overrides).recipe;
    return plan_memory(recipe, gpu ? std::optional(find_gpu(gpu_catalogue(), gpu)) : std::nullopt);
  }
  static std::map<std::string, size_t> by_kind(const MemoryPlan& p) {
    std::map<std::string, size_t> sums;
    for (const PlanLine& line : p.lines()) sums[line.kind] += line.bytes;
    return sums;
  }
  static PlanLine line(const MemoryPlan& p, const std::string& name) {
    for (const PlanLine& one : p.lines()) {
      if (one.name == name) return one;
    }
    ADD_FAILURE() << "no line " << name;
    return {};
  }

  test::Scratch folder_{test::Scratch::Where::memory};
};

// Every size of these models is a multiple of the arena's alignment, so that the closed forms hold to the byte.
TEST_F(Plans, StateOfLlama8BIsExact) {
  constexpr size_t kParameters = 8'030'261'248, kRows = 195;
  const MemoryPlan p = plan(kLlama8B, {{"train.precision", "bf16"}});
  EXPECT_EQ(p.config.parameters(), static_cast<int64_t>(kParameters));
  auto kinds = by_kind(p);
  EXPECT_EQ(kinds["weights"], 2 * kParameters);
  EXPECT_EQ(kinds["master weights"], 4 * kParameters);
  EXPECT_EQ(kinds["moments"], 8 * kParameters);
  EXPECT_EQ(line(p, "gradient").bytes, 4 * kParameters);
  EXPECT_EQ(line(p, "gradient").count, static_cast<int64_t>(kRows));
  EXPECT_EQ(kinds["gradients"], 4 * kParameters + (8 * kRows + 63) / 64 * 64);

  kinds = by_kind(plan(kLlama8B, {{"train.precision", "fp32"}}));
  EXPECT_FALSE(kinds.contains("weights"));
  EXPECT_EQ(kinds["master weights"] + kinds["moments"] + kinds["gradients"],
            16 * kParameters + (8 * kRows + 63) / 64 * 64);
}

// 8h + 4nd + 4kd + 6f bytes a layer and token: 139,264. Beside it the log-sum-exp (4n) and two reciprocal deviations.
TEST_F(Plans, ActivationsOfLlama8BAreTheClosedForm) {
  constexpr size_t kTokens = 2 * 4096, kLayers = 32;
  const MemoryPlan p = plan(kLlama8B, {{"data.sequence_length", "4096"},
                                       {"train.micro_batch", "2"},
                                       {"train.precision", "bf16"},
                                       {"memory.recompute", "none"}});
  size_t table = 0, statistics = 0, after = 0;
  for (const PlanLine& one : p.lines()) {
    if (one.kind != "activations, saved") continue;
    const bool of_layers = one.count == kLayers;
    EXPECT_TRUE(of_layers || one.count == 1) << one.name;
    const bool statistic = one.name == "lse" || one.name.ends_with("_rstd");
    (!of_layers ? after : statistic ? statistics : table) += one.bytes;
  }
  EXPECT_EQ(table, 139'264 * kTokens * kLayers);
  EXPECT_EQ(statistics, (4 * 32 + 2 * 4) * kTokens * kLayers);
  EXPECT_EQ(after, (2 * 2 * 4096 + 4) * kTokens);  // the final norm's input, output and deviation
  EXPECT_EQ(line(p, "gate_up").count, 32);
  EXPECT_EQ(line(p, "gate_up").bytes, 2 * 2 * 14336 * kTokens * kLayers);
}

// The whole block recomputed leaves 2h bytes a layer and token; the rest exists once.
TEST_F(Plans, RecomputedBlocksLeaveTheirInputs) {
  constexpr size_t kTokens = 4096;
  const MemoryPlan p = plan(kLlama8B, {{"data.sequence_length", "4096"}, {"memory.recompute", "block"}});
  EXPECT_EQ(line(p, "input").bytes, 2 * 4096 * kTokens * 32);
  EXPECT_EQ(line(p, "gate_up").kind, "activations, recomputed");
  EXPECT_EQ(line(p, "gate_up").count, 1);
  EXPECT_EQ(line(p, "gate_up").bytes, 2 * 2 * 14336 * kTokens);
}

// 2 bytes x V x the tokens of a chunk: all of them in one chunk make the loss the peak.
TEST_F(Plans, LogitsAreOfOneChunk) {
  const std::map<std::string, std::string> changes{
      {"data.sequence_length", "8192"}, {"memory.loss_chunks", "1"}, {"memory.recompute", "block"}};
  const MemoryPlan whole = plan(kLlama8B, changes);
  EXPECT_EQ(line(whole, "logits chunk").bytes, size_t{2} * 128256 * 8192);
  EXPECT_STREQ(whole.plan.moment_of_peak.part, "loss");
  auto cut = changes;
  cut["memory.loss_chunks"] = "16";
  size_t chunk = 0;
  const MemoryPlan chunked = plan(kLlama8B, cut);
  for (const MemoryEvent& event : chunked.plan.timeline.events) {
    if (event.kind == MemoryKind::loss) chunk = std::max(chunk, static_cast<size_t>(std::max(event.bytes, int64_t{0})));
  }
  EXPECT_EQ(chunk, size_t{2} * 128256 * 512);
}

TEST_F(Plans, LinesAddUpToWhatIsNeeded) {
  for (const char* gpu : {"RTX 4090", static_cast<const char*>(nullptr)}) {
    const MemoryPlan p = plan(test::tiny_config("Qwen3"), {{"data.sequence_length", "64"}, {"threads", "1"}}, gpu);
    size_t arena = 0, all = 0;
    for (const PlanLine& one : p.lines()) {
      all += one.bytes;
      if (one.kind != "overhead" && one.kind != "loader") arena += one.bytes;
    }
    EXPECT_EQ(arena, p.plan.peak_bytes);
    EXPECT_EQ(all, p.needed());
    EXPECT_TRUE(p.fits());
    EXPECT_FALSE(p.estimates.empty());
    const nlohmann::json json = plan_json(p);
    EXPECT_EQ(json["predicted"]["peak_bytes"], p.plan.peak_bytes);
    EXPECT_EQ(json["predicted"]["resident_bytes"], all);
    EXPECT_EQ(json["predicted"]["items"].size(), p.lines().size());
    EXPECT_EQ(json["capacity"]["bytes"], p.capacity);
    EXPECT_EQ(json["fits"], true);
  }
}

TEST_F(Plans, SettingsAreNamed) {
  const MemoryPlan given = plan(kLlama8B, {{"data.sequence_length", "4096"},
                                           {"train.precision", "bf16"},
                                           {"train.micro_batch", "2"},
                                           {"train.global_batch", "10"},
                                           {"train.optimizer", "muon"},
                                           {"memory.recompute", "mlp"},
                                           {"memory.recompute_layers", "3"},
                                           {"memory.loss_chunks", "16"},
                                           {"memory.moments", "int8"},
                                           {"memory.master", "none"},
                                           {"memory.gradients", "bf16"}});
  EXPECT_CONTAINS(plan_report(given),
                  "\n5 x 2 sequences a step, recompute mlp in 3 of 32 layers, loss in chunks of 512 tokens, muon, "
                  "moments int8, master none, gradients bf16\n");
  EXPECT_EQ(plan_json(given)["predicted"]["settings"], nlohmann::json::parse(R"({
      "micro_batch": 2, "micro_batches": 5, "recompute": "mlp", "recompute_layers": 3, "loss_chunk": 512,
      "optimizer": "muon", "moments": "int8", "master": "none", "gradients": "bf16", "consume_gradients": false})"));

  // Whatever isn't given: 32 MiB of logits are 130.8 rows of 128256 x 2 bytes, and the B200 holds all activations.
  const MemoryPlan open = plan(kLlama8B, {{"train.precision", "bf16"}, {"memory.consume_gradients", "true"}}, "B200");
  EXPECT_CONTAINS(plan_report(open),
                  "\n1 x 1 sequences a step, nothing recomputed, loss in chunks of 128 tokens, gradients consumed in "
                  "backward\n");
  EXPECT_EQ(plan_json(open)["predicted"]["settings"], nlohmann::json::parse(R"({
      "micro_batch": 1, "micro_batches": 1, "recompute": "none", "recompute_layers": 0, "loss_chunk": 128,
      "optimizer": "adamw", "moments": "fp32", "master": "fp32", "gradients": "fp32", "consume_gradients": true})"));
}

// Keys that the plan's precision or optimizer rules out, or that are set already, are no advice.
TEST_F(Plans, WhereNothingFitsEveryKeyThatLowersTheNeedIsNamed) {
  const std::string keys[] = {"memory.moments int8", "memory.gradients bf16", "memory.master none",
                              "memory.consume_gradients true"};
  const auto expect = [&](const std::map<std::string, std::string>& changes, const std::vector<int>& named) {
    const std::string text = misfit_text(plan(kLlama8B, changes, "T4"), "yoke plan it");
    for (int i = 0; i < 4; ++i) {
      const bool has = std::find(named.begin(), named.end(), i) != named.end();
      EXPECT_EQ(text.find(keys[i]) != text.npos, has) << keys[i] << " in: " << text;
    }
    for (const char* part : {"data.sequence_length", "a smaller model", "more memory", "the smallest plan"})
      EXPECT_CONTAINS(text, part);
    EXPECT_EQ(text.find("yoke plan"), text.npos) << text;
  };
  expect({{"train.precision", "fp32"}}, {0, 3});
  expect({{"train.precision", "fp16"}}, {0});
  expect({{"train.precision", "fp32"}, {"memory.moments", "int8"}}, {3});
  expect({{"train.precision", "fp32"}, {"train.optimizer", "adafactor"}}, {3});
  expect({{"train.precision", "fp32"}, {"train.optimizer", "sgd"}, {"train.momentum", "0"}}, {3});
  expect({{"train.precision", "fp32"}, {"memory.consume_gradients", "true"}}, {0});
  const auto on_l4 = [&](const std::map<std::string, std::string>& changes) {
    return misfit_text(plan(test::llama3(8192, 80, 64, 28672), changes, "L4"), "yoke plan it");
  };
  const std::string all = on_l4({{"train.precision", "bf16"}});
  for (const std::string& key : keys) EXPECT_CONTAINS(all, key);
  const std::string none = on_l4({{"train.precision", "bf16"},
                                  {"memory.moments", "int8"},
                                  {"memory.gradients", "bf16"},
                                  {"memory.master", "none"},
                                  {"memory.consume_gradients", "true"}});
  for (const std::string& key : keys) EXPECT_EQ(none.find(key), none.npos) << none;
}

// A GPU multiplies 16 bits as they are, whatever the processor that plans, and keeps tiles on chip.
TEST_F(Plans, AGpuIsNotThisProcessor) {
  for (const char* precision : {"bf16", "fp16", "fp32"}) {
    const MemoryPlan p = plan(kLlama8B, {{"train.precision", precision}});
    for (const PlanLine& one : p.lines()) {
      EXPECT_EQ(one.name.find("in fp32"), std::string::npos) << one.name;
      if (one.kind == "workspace") {
        EXPECT_EQ(one.bytes, size_t{32} << 20) << one.name;
      }
    }
    const MemoryPlan other_threads = plan(kLlama8B, {{"train.precision", precision}, {"threads", "1"}});
    EXPECT_EQ(plan_json(p), plan_json(other_threads));
  }
}

TEST_F(Plans, PrecisionIsWhatTheGpuHas) {
  EXPECT_EQ(plan(kLlama8B, {}, "L4").engine.compute, DType::bf16);
  EXPECT_EQ(plan(kLlama8B, {}, "T4").engine.compute, DType::f16);
  EXPECT_CONTAINS(error_of([&] { plan(kLlama8B, {{"train.precision", "bf16"}}, "T4"); }, ExitCode::usage), "fp16");
}

TEST_F(Plans, WhatAPlanCannotBeForIsSaid) {
  const auto refused = [&](const std::map<std::string, std::string>& changes, const char* gpu) {
    return error_of([&] { plan(test::tiny_config("Llama"), changes, gpu); }, ExitCode::usage);
  };
  EXPECT_CONTAINS(refused({{"device", "cuda"}}, nullptr), "--gpu");
  EXPECT_CONTAINS(refused({{"device", "cpu"}}, "L4"), "--gpu");
  EXPECT_CONTAINS(refused({{"data.sequence_length", "65"}}, "L4"), "data.sequence_length is 65");
  EXPECT_CONTAINS(refused({{"adapter.type", "lora"}}, "L4"), "not built yet");
}

TEST_F(Plans, AbsurdSizesAreNamed) {
  const auto message = [&](const nlohmann::json& changes, ExitCode code,
                           const std::map<std::string, std::string>& recipe = {}, const char* gpu = "L4") {
    return error_of([&] { plan(test::tiny_config("Llama", changes), recipe, gpu); }, code);
  };
  constexpr int64_t kHuge = int64_t{1} << 30;
  // The model's file is what is wrong.
  EXPECT_CONTAINS(message({{"hidden_size", 1'000'000'000'000}}, ExitCode::bad_file), "hidden_size is 1000000000000");
  EXPECT_CONTAINS(message({{"vocab_size", int64_t{1} << 40}}, ExitCode::bad_file), "vocab_size");
  EXPECT_CONTAINS(message({{"num_hidden_layers", 10001}}, ExitCode::bad_file), "num_hidden_layers is 10001");
  EXPECT_CONTAINS(message({{"hidden_size", 2 * kHuge - 1}, {"intermediate_size", 2 * kHuge - 1}}, ExitCode::bad_file),
                  "3 x hidden_size x intermediate_size");
  EXPECT_CONTAINS(
      message({{"hidden_size", kHuge}, {"intermediate_size", kHuge}, {"num_hidden_layers", 10000}}, ExitCode::bad_file),
      "num_hidden_layers x the parameters of a layer");
  // The recipe is.
  EXPECT_CONTAINS(message({}, ExitCode::usage, {{"train.micro_batch", "1e9"}}), "train.micro_batch");
  EXPECT_CONTAINS(message({{"max_position_embeddings", 1 << 24}}, ExitCode::usage,
                          {{"train.micro_batch", "1e7"}, {"data.sequence_length", "1e7"}}),
                  "train.micro_batch 10000000 x data.sequence_length 10000000");
  // Each size is legal, and so is each product; their sum is not.
  for (const char* gpu : {"L4", static_cast<const char*>(nullptr)}) {
    const std::map<std::string, std::string> short_rows{{"data.sequence_length", "2"}};
    EXPECT_CONTAINS(message({{"vocab_size", kHuge}, {"hidden_size", kHuge}}, ExitCode::does_not_fit, short_rows, gpu),
                    "sums of 2^63 bytes");
    EXPECT_CONTAINS(
        message({{"vocab_size", 2 * kHuge - 1}, {"hidden_size", 2 * kHuge - 1}, {"tie_word_embeddings", true}},
                ExitCode::usage, short_rows, gpu),
        "master weight");
  }
}

// Far more than any machine has, but not too much to say how much.
TEST_F(Plans, SizesBeyondAnyMachineAreStillPlanned) {
  for (const char* gpu : {"L4", static_cast<const char*>(nullptr)}) {
    const nlohmann::json wide = test::tiny_config("Llama", {{"hidden_size", 1 << 22}, {"intermediate_size", 1 << 24}});
    const MemoryPlan p = plan(
        wide, {{"data.sequence_length", "64"}, {"train.micro_batch", "65536"}, {"train.global_batch", "1073741824"}},
        gpu);
    EXPECT_GT(p.needed(), size_t{1} << 50);
    EXPECT_FALSE(p.fits());
    EXPECT_CONTAINS(misfit_text(p, "yoke plan it"), std::to_string(p.needed()) + " bytes");
  }
}

/// Every element of an XML text is closed in its order, and no text holds a bare < or &.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find_first_of("<&"); at != std::string::npos; at = xml.find_first_of("<&", at + 1)) {
    if (xml[at] == '&') {
      const std::string entity = xml.substr(at, xml.find(';', at) - at + 1);
      EXPECT_TRUE(entity == "&amp;" || entity == "&lt;" || entity == "&gt;") << entity;
      continue;
    }
    const size_t end = xml.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(at + 1, end - at - 1), name = tag.substr(0, tag.find(' '));
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ("/" + open.back(), tag);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST_F(Plans, ThePictureSaysWhatThePlanSays) {
  for (const char* gpu : {"RTX 4090", static_cast<const char*>(nullptr)}) {
    MemoryPlan p = plan(kLlama8B, {{"train.global_batch", "5"}, {"memory.recompute", "block"}}, gpu);
    p.model = "a<b>&c";
    const std::string svg = memory_picture(p);
    expect_well_formed(svg);
    EXPECT_CONTAINS(svg, "a&lt;b&gt;&amp;c");
    EXPECT_CONTAINS(svg, ">GiB<");
    EXPECT_CONTAINS(svg, "peak: " + p.plan.peak_text());
    EXPECT_CONTAINS(svg, "capacity " + bytes_text(p.capacity));
    EXPECT_CONTAINS(svg, ">" + bytes_text(p.needed()) + "<");  // the legend's sum
    EXPECT_CONTAINS(svg, "Micro-batches 3 to 5");
    for (const auto& [kind, bytes] : by_kind(p)) {
      if (kind != "overhead" && kind != "loader") {
        EXPECT_CONTAINS(svg, ">" + kind + "<");
      }
    }
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf\""), std::string::npos);
  }
}

}  // namespace
}  // namespace yoke
