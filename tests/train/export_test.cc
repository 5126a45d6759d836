// Models of every family, trained from random weights and written for tests/oracle/check_export.py, which asks
// transformers for the same loss.
#include "tests/train/run_support.h"
#include "train/inference.h"

namespace yoke::test {
namespace {

struct Family {
  const char* name;
  const char* family;
  const char* precision;
  nlohmann::json changes;
};

class Export : public RunTest {};

TEST_F(Export, TrainedModelsOfEveryFamily) {
  const fs::path out(YOKE_EXPORT_DIR);
  fs::remove_all(out);
  fs::create_directories(out);
  const std::vector<Family> families = {{"llama", "Llama", "fp32", {}},
                                        {"llama-tied-bf16", "Llama", "bf16", {{"tie_word_embeddings", true}}},
                                        {"llama-scaled-fp16",
                                         "Llama",
                                         "fp16",
                                         {{"rope_scaling",
                                           {{"rope_type", "llama3"},
                                            {"factor", 4.0},
                                            {"low_freq_factor", 1.0},
                                            {"high_freq_factor", 4.0},
                                            {"original_max_position_embeddings", 16}}}}},
                                        {"mistral", "Mistral", "fp32", {{"sliding_window", 7}}},
                                        {"qwen2", "Qwen2", "fp32", {{"tie_word_embeddings", true}}},
                                        {"qwen3", "Qwen3", "fp32", {}}};
  for (const auto& [name, family, precision, changes] : families) {
    SCOPED_TRACE(name);
    write_config(name, changes, family);
    expect_done({{"model.path", at(name)},
                 {"train.precision", precision},
                 {"train.steps", "8"},
                 {"output", at(std::string(name) + "-run")}});
    fs::copy(folder_ / (std::string(name) + "-run") / "model", out / name);

    const std::string text = tiny_text(48, 5);
    Batch batch{.rows = 2, .length = 24, .supervised = 46};
    nlohmann::json rows = {nlohmann::json::array(), nlohmann::json::array()};
    for (size_t i = 0; i < 48; ++i) {
      const auto token = static_cast<int32_t>(text[i]);
      rows[i / 24].push_back(token);
      batch.tokens.push_back(token);
      batch.targets.push_back(i % 24 == 23 ? Batch::kIgnore : static_cast<int32_t>(text[i + 1]));
      batch.positions.push_back(static_cast<int32_t>(i % 24));
      batch.key_begin.push_back(0);
    }
    InferenceModel model({.model = out / name, .threads = 1, .precision = Precision::fp32});
    model.prepare_evaluation(2, 24);
    const double loss = model.evaluate(batch) / 46;
    EXPECT_LT(loss, 5) << "eight steps must have taught it something";
    write_file(out / name / "expected.json", nlohmann::json{{"tokens", rows}, {"loss", loss}}.dump());
  }
}

}  // namespace
}  // namespace yoke::test
