// yoke train as it is typed, under every kind of mesh: the program starts its ranks through mpirun, trains as one rank
// does, and what is killed under one mesh goes on under another.
#include "checkpoint/training_state.h"
#include "tests/train/run_support.h"

namespace yoke::test {
namespace {

struct MeshOfRun {
  std::string name;
  std::vector<std::string> words;  ///< keys and values of `parallel`
};

class MeshRun : public RunTest {
 protected:
  /// Four layers, so that two ranks can have two pieces each; twelve sequences a step, so that two to four ranks divide
  /// them.
  MeshRun() {
    write_config("untied", {{"num_hidden_layers", 4}});
    write_config("tied", {{"num_hidden_layers", 4}, {"tie_word_embeddings", true}}, "Qwen2");
  }

  std::vector<std::string> words(const std::string& output, const std::vector<std::string>& mesh,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train", at("recipe.yaml"), "--output", at(output)};
    const std::vector<std::string> common{"train.micro_batch", "1", "train.global_batch", "12", "evaluate.every", "3"};
    for (const auto* part : {&common, &mesh}) {
      for (size_t i = 0; i + 1 < part->size(); i += 2) {
        const std::string section = part == &mesh ? "parallel." : "";
        all.push_back(fmt::format("--{}{}={}", section, (*part)[i], (*part)[i + 1]));
      }
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void expect_trained(const std::vector<std::string>& words) {
    YokeProcess process(words);
    ASSERT_EQ(process.wait(), 0) << process.text();
    said_ = process.text();
  }

  std::string said_;
};

/// Numbers that a run of one rank logged, within `tolerance` of their size; what doesn't come from sums is the same.
void expect_same_numbers(const fs::path& got_output, const fs::path& want_output, double tolerance) {
  const auto got = metrics_of(got_output), want = metrics_of(want_output);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(want[i].dump());
    ASSERT_EQ(got[i].size(), want[i].size());
    for (const auto& [key, value] : want[i].items()) {
      if (key == "memory") continue;  // of one rank
      if (key == "loss" || key == "grad_norm" || key == "validation_loss" || key == "perplexity") {
        const auto number = value.get<double>();
        EXPECT_NEAR(got[i].at(key).get<double>(), number, tolerance * number) << key;
      } else {
        EXPECT_EQ(got[i].at(key), value) << key;
      }
    }
  }
}

// Layouts add up in other orders, so that gradients differ by some of fp32's roundings (6e-8), and norms of gradients
// by some more; eight updates of Adam moved losses by 2e-7 and norms by 2e-6.
constexpr double kRounding = 1e-5;

// Case 9 and the evaluation's: the same rates, losses, norms and validation losses as one rank's.
TEST_F(MeshRun, TrainsAsOneRankDoes) {
  const std::vector<MeshOfRun> meshes = {
      {"data 2, no ZeRO", {"data", "2", "zero", "0"}},
      {"data 4, ZeRO 1", {"data", "4"}},
      {"data 3, ZeRO 2", {"data", "3", "zero", "2"}},
      {"data 2, ZeRO 3", {"data", "2", "zero", "3"}},
      {"data 4, ZeRO 3 over 2", {"data", "4", "zero", "3", "shard", "2"}},
      {"tensor 2", {"tensor", "2"}},
      {"context 4", {"context", "4"}},
      {"pipeline 3", {"pipeline", "3"}},
      {"interleaved 2", {"pipeline", "2", "schedule", "interleaved", "virtual_stages", "2"}},
      {"zero-bubble 2", {"pipeline", "2", "schedule", "zero-bubble"}},
      {"data 2, tensor 2, ZeRO 3", {"data", "2", "tensor", "2", "zero", "3"}},
      {"data 2, context 2, ZeRO 2", {"data", "2", "context", "2", "zero", "2"}},
      {"data 2, zero-bubble 2, ZeRO 3", {"data", "2", "pipeline", "2", "schedule", "zero-bubble", "zero", "3"}},
      {"pipeline 2, tensor 2", {"pipeline", "2", "tensor", "2"}},
      {"interleaved 2, context 2",
       {"context", "2", "pipeline", "2", "schedule", "interleaved", "virtual_stages", "2"}}};
  const std::vector<std::string> common{"--train.steps=8", "--checkpoint.every=0"};
  const auto with = [&](const std::string& model) {
    std::vector<std::string> more = common;
    more.push_back("--model.path=" + at(model));
    return more;
  };
  for (const std::string model : {"untied", "tied"}) expect_trained(words(model + "-one", {}, with(model)));
  for (size_t i = 0; i < meshes.size(); ++i) {
    const std::string model = i % 2 == 0 ? "untied" : "tied";
    SCOPED_TRACE(meshes[i].name + ", " + model);
    expect_trained(words("many", meshes[i].words, with(model)));
    EXPECT_CONTAINS(said_, "first samples: data 0 ");
    expect_same_numbers(folder_ / "many", folder_ / (model + "-one"), kRounding);
    EXPECT_TRUE(fs::exists(folder_ / "many/model/model.safetensors"));
    fs::remove_all(folder_ / "many");
  }
}

// Each is killed in mid-run and goes on as the next; the last ends where an undisturbed run of one rank does.
TEST_F(MeshRun, WhatIsKilledUnderOneMeshGoesOnUnderAnother) {
  const std::vector<MeshOfRun> meshes = {
      {"data 4, ZeRO 1", {"data", "4"}},
      {"data 2, ZeRO 3", {"data", "2", "zero", "3"}},
      {"data 3, ZeRO 1", {"data", "3"}},
      {"tensor 2", {"tensor", "2"}},
      {"one rank", {}},
      {"pipeline 2, interleaved", {"pipeline", "2", "schedule", "interleaved", "virtual_stages", "2"}},
      {"context 2", {"context", "2"}},
      {"pipeline 2, tensor 2", {"pipeline", "2", "tensor", "2"}}};
  constexpr int64_t kStretch = 2;
  // The rate doesn't depend on when the run ends. Those to be killed would go on for long.
  const auto until = [&](int64_t steps) {
    return std::vector<std::string>{"--model.path=" + at("untied"), "--train.schedule=constant",
                                    "--train.learning_rate=3e-3", "--resume=auto",
                                    fmt::format("--train.steps={}", steps)};
  };
  const auto last = static_cast<int64_t>(meshes.size()) * kStretch;
  expect_trained(words("whole", {}, until(last)));
  for (size_t i = 0; i < meshes.size(); ++i) {
    SCOPED_TRACE(meshes[i].name);
    const int64_t end = static_cast<int64_t>(i + 1) * kStretch;
    if (end == last) {
      expect_trained(words("parts", meshes[i].words, until(last)));
      continue;
    }
    YokeProcess process(words("parts", meshes[i].words, until(100000)));
    ASSERT_TRUE(process.read_until(fmt::format("step {}/", end + 1))) << process.text();
    const bool alone = meshes[i].words.empty();
    if (alone) {
      process.send(SIGKILL);
    } else {
      ::kill(process_of_rank(at("recipe.yaml"), 1), SIGKILL);
    }
    EXPECT_EQ(process.wait(), alone ? 128 + SIGKILL : 7) << process.text();
    if (i > 0) {
      EXPECT_CONTAINS(process.text(), fmt::format("(step {})", end - kStretch));
    }
    // How far it came depends on the clock: what is later than `end` goes.
    for (const auto& entry : fs::directory_iterator(folder_ / "parts/checkpoints")) {
      if (entry.path().filename().string() > step_name(end)) fs::remove_all(entry.path());
    }
    ASSERT_TRUE(fs::exists(folder_ / "parts/checkpoints" / step_name(end)));
  }
  expect_same_numbers(folder_ / "parts", folder_ / "whole", kRounding);
}

// A last step that two of four ranks have no rows for, trained and gone on with: nothing hangs, padding is no sample.
TEST_F(MeshRun, RanksWithoutRowsTakePart) {
  const std::vector<std::string> epoch{"--train.epochs=1", "--train.global_batch=16", "--checkpoint.every=1"};
  std::vector<std::string> again = epoch;
  again.emplace_back("--resume=auto");
  const auto of = [&](const std::string& output, const std::vector<std::string>& mesh, auto& more) {
    auto all = words(output, mesh, more);
    std::erase(all, "--train.global_batch=12");
    return all;
  };
  write_file(folder_ / "train.txt", tiny_text(50 * 16 - 1));
  // 50 rows, 16 a step: the fourth has 2.
  const std::string recipe = read_file(folder_ / "recipe.yaml");
  std::string without_steps = recipe;
  without_steps.erase(without_steps.find("  steps: 30\n"), std::string("  steps: 30\n").size());
  write_file(folder_ / "recipe.yaml", without_steps);
  expect_trained(of("one", {}, epoch));
  ASSERT_EQ(metrics_of(folder_ / "one").back().at("step"), 4);
  expect_trained(of("four", {"data", "4"}, epoch));
  expect_same_numbers(folder_ / "four", folder_ / "one", kRounding);
  fs::remove_all(folder_ / "four/checkpoints" / step_name(4));
  expect_trained(of("four", {"data", "4"}, again));
  EXPECT_EQ(said_.find("read the same samples"), std::string::npos) << said_;
  expect_same_numbers(folder_ / "four", folder_ / "one", kRounding);
  expect_trained(of("four", {"data", "4"}, again));  // with nothing left to do
}

}  // namespace
}  // namespace yoke::test
