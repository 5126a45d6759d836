// Whole tiny models against PyTorch: losses, every gradient, fifty AdamW steps, and the key/value cache. The folders
// come from tests/oracle/make_models.py.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/hf_config.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/safetensors.h"
#include "device/transfer.h"
#include "ops/elementwise/elementwise.h"
#include "train/engine_plan.h"

namespace yoke {
namespace {

std::vector<std::filesystem::path> oracle_folders() {
  std::vector<std::filesystem::path> folders;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(YOKE_ORACLE_DIR, ignored)) {
    if (std::filesystem::exists(entry.path() / "losses_50.json")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

template <class T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << file.path() << " has no " << name;
  const auto bytes = file.bytes(*tensor);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

Batch read_batch(const SafetensorsFile& file, const std::string& prefix) {
  Batch batch{.tokens = values<int32_t>(file, prefix + "tokens"),
              .targets = values<int32_t>(file, prefix + "targets"),
              .positions = values<int32_t>(file, prefix + "positions"),
              .key_begin = values<int32_t>(file, prefix + "key_begin")};
  const auto& shape = file.find(prefix + "tokens")->shape;
  batch.rows = shape[0];
  batch.length = shape[1];
  for (const int32_t target : batch.targets) batch.supervised += target >= 0;
  return batch;
}

/// An engine with its memory, and the folder's weights in it.
struct Model {
  Model(const std::filesystem::path& folder, EngineOptions options)
      : config(read_hf_config(folder)), device(Device::cpu(2)) {
    options.micro_batch = 3;
    options.sequence_length = 24;
    options.micro_batches = 2;
    block = MemoryBlock(plan_engine(device, config.model, options).peak_bytes);
    arena = Arena(block.data(), block.bytes());
    engine.emplace(ctx, config.model, options);
    const WeightReader reader(folder, engine->transformer().parameters());
    for (size_t i = 0; i < engine->master().size(); ++i) reader.read(i, engine->master()[i]);
    engine->refresh_weights(ctx);
    engine->clear_optimizer(ctx);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  HfConfig config;
  Device device;
  MemoryBlock block;
  Arena arena;
  Stream stream;
  Context ctx{device, stream, arena};
  std::optional<Engine> engine;
};

struct Comparison {
  double relative_error, cosine, norm_ratio;
};

Comparison compare(const float* got, const std::vector<float>& want) {
  double difference = 0, got_square = 0, want_square = 0, dot = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double g = got[i], w = want[i];
    difference += (g - w) * (g - w);
    got_square += g * g;
    want_square += w * w;
    dot += g * w;
  }
  return {std::sqrt(difference / want_square), dot / std::sqrt(got_square * want_square),
          std::sqrt(got_square / want_square)};
}

class OracleTest : public testing::TestWithParam<std::filesystem::path> {
 protected:
  /// check(name, comparison) for each weight under its Hugging Face name, and for each fused tensor as a whole.
  template <class Check>
  void for_each_gradient(const Model& model, const Check& check) const {
    const SafetensorsFile expected(GetParam() / "expected_fp32.safetensors");
    const ParameterTable& table = model.engine->transformer().parameters();
    for (size_t i = 0; i < table.size(); ++i) {
      std::vector<float> whole;
      for (const ParameterPart& part : table[i].parts) {
        const std::vector<float> values_of_part = values<float>(expected, part.name);
        whole.insert(whole.end(), values_of_part.begin(), values_of_part.end());
      }
      check(table[i].name, compare(model.engine->gradients()[i].as<float>(), whole));
      for (const ParameterPart& part : table[i].parts) {
        const int64_t cols = table[i].shape.rank() == 1 ? 1 : table[i].shape.cols();
        const float* got = model.engine->gradients()[i].as<float>() + part.row * cols;
        check(part.name, compare(got, values<float>(expected, part.name)));
      }
    }
  }
  float expected_loss() const {
    return values<float>(SafetensorsFile(GetParam() / "expected_fp32.safetensors"), "loss")[0];
  }
  Batch batch() const { return read_batch(SafetensorsFile(GetParam() / "batch.safetensors"), ""); }
};

TEST_P(OracleTest, LossAndGradientsInFp32) {
  for (const int64_t chunk : {0, 7}) {
    Model model(GetParam(), {.compute = DType::f32, .loss_chunk = chunk});
    const StepResult result = model.engine->step(model.ctx, {{batch()}}, {});
    EXPECT_NEAR(result.loss(), expected_loss(), 1e-5 * expected_loss());
    for_each_gradient(model,
                      [](const std::string& name, const Comparison& c) { EXPECT_LE(c.relative_error, 1e-5) << name; });
  }
}

TEST_P(OracleTest, LossAndGradientsInSixteenBits) {
  for (const DType compute : {DType::bf16, DType::f16}) {
    SCOPED_TRACE(name_of(compute));
    Model model(GetParam(), {.compute = compute});
    const StepResult result = model.engine->step(model.ctx, {{batch()}}, {});
    EXPECT_NEAR(result.loss(), expected_loss(), 0.01 * expected_loss());
    for_each_gradient(model, [](const std::string& name, const Comparison& c) {
      // A key bias hardly moves the loss: softmax ignores what all keys share, so its gradient is what the rotation
      // leaves of terms that cancel. PyTorch in bf16 with attention in fp32 misses its norm by up to 2.0 % on these
      // models. It is held to the tolerance as part of the fused q, k, v bias.
      if (name.ends_with("k_proj.bias")) return;
      EXPECT_GE(c.cosine, 0.999) << name;
      EXPECT_NEAR(c.norm_ratio, 1, 0.02) << name;
    });
  }
}

// The same bits whatever is recomputed.
TEST_P(OracleTest, RecomputationChangesNothing) {
  Model plain(GetParam(), {.compute = DType::f32});
  const StepResult want = plain.engine->step(plain.ctx, {{batch(), batch()}}, {});
  for (const Recompute recompute : {Recompute::norms, Recompute::mlp, Recompute::attention, Recompute::block}) {
    for (const int64_t layers : {-1, 1}) {
      Model model(GetParam(), {.compute = DType::f32, .recompute = recompute, .recompute_layers = layers});
      const StepResult got = model.engine->step(model.ctx, {{batch(), batch()}}, {});
      EXPECT_EQ(got.loss_sum, want.loss_sum);
      EXPECT_EQ(got.row_norms, want.row_norms);
      if (layers < 0 && plain.config.model.layers > 1) {
        EXPECT_LT(model.arena.peak(), plain.arena.peak());
      }
    }
  }
}

/// Fifty steps with an optimizer, along the curve in `name`.
void expect_curve(const std::filesystem::path& folder, const std::string& name, const OptimizerOptions& optimizer) {
  SCOPED_TRACE(name);
  std::ifstream in(folder / name);
  const nlohmann::json curve = nlohmann::json::parse(in);
  const SafetensorsFile file(folder / "train_batches.safetensors");
  Model model(folder, {.compute = DType::f32, .optimizer = optimizer});
  for (size_t t = 0; t < 50; ++t) {
    const auto micro = [&](size_t i) { return read_batch(file, fmt::format("{}.", i % 8)); };
    const StepResult result = model.engine->step(model.ctx, {{micro(2 * t), micro(2 * t + 1)}},
                                                 {.learning_rate = curve.at("learning_rates")[t],
                                                  .weight_decay = curve.at("weight_decay"),
                                                  .clip_norm = curve.at("clip_norm"),
                                                  .step = static_cast<int64_t>(t) + 1});
    ASSERT_NEAR(result.loss(), curve.at("losses")[t].get<double>(), 1e-4) << "step " << t;
    const double norm = curve.at("gradient_norms")[t];
    ASSERT_NEAR(result.gradient_norm, norm, 1e-3 * norm) << "step " << t;
  }
}

TEST_P(OracleTest, FiftySteps) {
  expect_curve(GetParam(), "losses_50.json", {});
  if (!std::filesystem::exists(GetParam() / "losses_50_sgd.json")) return;
  expect_curve(GetParam(), "losses_50_sgd.json", {.kind = OptimizerKind::sgd, .momentum = 0.9});
  expect_curve(GetParam(), "losses_50_adafactor.json", {.kind = OptimizerKind::adafactor});
  expect_curve(GetParam(), "losses_50_muon.json", {.kind = OptimizerKind::muon, .momentum = 0.95});
}

// Row 0 is one document: its logits, entered in pieces of all sizes through the key/value cache.
TEST_P(OracleTest, CachedDecoding) {
  const SafetensorsFile expected(GetParam() / "expected_fp32.safetensors");
  const std::vector<float> logits = values<float>(expected, "logits");
  const Batch b = batch();
  Model model(GetParam(), {.compute = DType::f32});
  const ModelConfig& config = model.config.model;
  const MemoryBlock block(size_t{64} << 20);
  Arena arena(block.data(), block.bytes());
  Context ctx{model.device, model.stream, arena};
  KeyValueCache cache;
  for (int64_t l = 0; l < config.layers; ++l) {
    cache.k.push_back(arena.allocate("k", DType::f32, {b.length, config.kv_size()}));
    cache.v.push_back(arena.allocate("v", DType::f32, {b.length, config.kv_size()}));
  }
  const TensorView out = arena.allocate("logits", DType::f32, {1, config.vocabulary});
  for (const int64_t piece : {5, 1, 1, 7, 3, 1}) {
    const int64_t first = cache.filled;
    const auto send = [&](const std::vector<int32_t>& from) {
      const TensorView view = arena.allocate("tokens", DType::i32, {piece});
      upload(ctx, std::span(from).subspan(static_cast<size_t>(first), static_cast<size_t>(piece)), view);
      return view;
    };
    model.engine->transformer().decode(ctx, send(b.tokens), send(b.positions), send(b.key_begin),
                                       model.engine->weights(), cache, out);
    const auto at = static_cast<std::ptrdiff_t>((cache.filled - 1) * config.vocabulary);
    const std::vector<float> want(logits.begin() + at, logits.begin() + at + config.vocabulary);
    EXPECT_LE(compare(out.as<float>(), want).relative_error, 1e-5) << "after " << cache.filled << " tokens";
  }
}

TEST(Oracle, FoldersAreThere) {
  const auto folders = oracle_folders();
  EXPECT_GE(folders.size(), 8u) << "run tests/oracle/make_models.py";
  for (const char* name : {"sgd", "adafactor", "muon"}) {
    const auto curves = std::count_if(folders.begin(), folders.end(), [&](const std::filesystem::path& folder) {
      return std::filesystem::exists(folder / fmt::format("losses_50_{}.json", name));
    });
    EXPECT_GE(curves, 3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OracleTest, testing::ValuesIn(oracle_folders()), [](const auto& info) {
  std::string name = info.param.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
});
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OracleTest);

}  // namespace
}  // namespace yoke
