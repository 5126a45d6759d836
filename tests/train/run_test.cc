// Runs from recipe to model: numbers that stop being numbers, what is refused and why, and what comes out.
#include <cmath>
#include <numeric>

#include "checkpoint/hf_model.h"
#include "checkpoint/training_state.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/train/run_support.h"
#include "train/learning_rate.h"

namespace yoke::test {
namespace {

class Numbers : public RunTest {};

// Steps whose fp16 gradients overflow do not count: not for the schedule, not for Adam.
TEST_F(Numbers, SkippedStepsAdvanceNothing) {
  write_config("wild", {{"initializer_range", 1.5}});
  expect_done({{"train.precision", "fp16"},
               {"model.path", at("wild")},
               {"train.weight_decay", "0"},
               {"train.clip_norm", "0"},
               {"train.steps", "12"},
               {"evaluate.every", "0"}});
  const auto lines = metrics_of(folder_ / "run");
  ASSERT_EQ(lines.size(), 13u);
  ASSERT_GT(lines[0].at("skipped"), 0);
  const Recipe recipe = load_recipe(at("recipe.yaml")).recipe;
  for (int64_t i = 0; i < 12; ++i) {
    const auto& line = lines[static_cast<size_t>(i)];
    EXPECT_EQ(line.at("step"), i + 1);
    TrainRecipe train = recipe.train;
    EXPECT_EQ(line.at("lr"), learning_rate(train, 12, i + 1));
    EXPECT_EQ(line.at("tokens"), (i + 1 + line.at("skipped").get<int64_t>()) * 64);
  }
  // The first update that was made has Adam's count 1: the corrected moments are g and g^2, whatever was skipped.
  PlannedEngine fresh(tiny_model("Llama", {{"initializer_range", 1.5}}), {.compute = DType::f16});
  fresh->initialise(fresh.ctx, 3);
  const Checkpoint checkpoint(folder_ / "run/checkpoints" / step_name(1));
  const ParameterTable& table = fresh->transformer().parameters();
  for (size_t i = 0; i < table.size(); ++i) {
    const auto read = [&](const std::string& prefix) {
      std::vector<float> values(static_cast<size_t>(table[i].shape.elements()));
      checkpoint.read(prefix + table[i].name, table[i].shape, Region::whole(table[i].shape),
                      TensorView(values.data(), DType::f32, table[i].shape));
      return values;
    };
    const auto weights = read("weights."), first = read("moments.first."), second = read("moments.second.");
    for (size_t j = 0; j < weights.size(); ++j) {
      const double update = lines[0].at("lr").get<double>() * (first[j] / 0.1) / (std::sqrt(second[j] / 0.05) + 1e-8);
      ASSERT_NEAR(weights[j], fresh->master()[i].as<float>()[j] - update, 1e-6) << table[i].name;
    }
  }
}

TEST_F(Numbers, NothingFiniteAnyMoreEndsTheRun) {
  const Overrides wild{{"train.learning_rate", "1e30"}, {"train.schedule", "constant"}, {"train.warmup", "0"}};
  const Ending ending = run(wild);
  EXPECT_EQ(ending.code, 5) << ending.message;
  EXPECT_CONTAINS(ending.message, "step 2");
  EXPECT_CONTAINS(ending.message, "smaller learning rate");
  EXPECT_FALSE(fs::exists(folder_ / "run/model"));
  const auto left = find_checkpoints(folder_ / "run/checkpoints", CheckDepth::hashes);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].step, 1);
  EXPECT_EQ(left[0].fault, "");
  // The same without regular checkpoints: the last good state is saved on the way out.
  Overrides unsaved = wild;
  unsaved["checkpoint.every"] = "0";
  unsaved["output"] = at("unsaved");
  EXPECT_EQ(run(unsaved).code, 5);
  EXPECT_EQ(find_checkpoints(folder_ / "unsaved/checkpoints", CheckDepth::hashes).size(), 1u);
}

class Poisoned : public Numbers {
 protected:
  /// A trained model in which the embedding of one byte is NaN.
  Overrides poisoned(uint8_t byte) {
    expect_done({{"train.steps", "3"}, {"output", at("source")}});
    const fs::path file = folder_ / "source/model/model.safetensors";
    std::string content = read_file(file);
    uint64_t header = 0;
    std::memcpy(&header, content.data(), sizeof header);
    const auto tensors = nlohmann::json::parse(content.substr(8, header));
    const size_t begin = tensors.at("model.embed_tokens.weight").at("data_offsets")[0];
    content.replace(8 + header + begin + byte * 32 * sizeof(float), 32 * sizeof(float), 32 * sizeof(float), '\xff');
    write_file(file, content);
    return {{"model.path", at("source/model")}, {"model.init", "pretrained"}};
  }
};

// Nothing finite was ever there: no state is called good, and nothing is promised that isn't there.
TEST_F(Poisoned, AModelOfNaNsIsRefused) {
  const Ending ending = run(poisoned('t'));
  EXPECT_EQ(ending.code, 5) << ending.message;
  EXPECT_CONTAINS(ending.message, "the loss of micro-batch 1 of 2 at step 1");
  EXPECT_FALSE(contains(ending.message, "saved state")) << ending.message;
  EXPECT_FALSE(fs::exists(folder_ / "run/model"));
}

// A byte that only the held-out text has: training is sound, the result is not.
TEST_F(Poisoned, AValidationLossThatIsNoNumberIsNoResult) {
  write_file(folder_ / "held.txt", tiny_text(100, 2) + "Z" + tiny_text(50, 2));
  const Ending ending = run(poisoned('Z'));
  EXPECT_EQ(ending.code, 5) << ending.message;
  EXPECT_CONTAINS(ending.log, "Step 7: the validation loss is not finite");
  EXPECT_CONTAINS(ending.message, "Step 30: the validation loss is not finite");
  EXPECT_CONTAINS(ending.message, "The newest saved state is of step 29");
  EXPECT_FALSE(fs::exists(folder_ / "run/model"));
  for (const auto& line : metrics_of(folder_ / "run")) EXPECT_FALSE(line.contains("validation_loss"));
}

class Refused : public RunTest {};

double number_after(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  if (at == text.npos) {
    ADD_FAILURE() << "'" << mark << "' is not in: " << text;
    return 0;
  }
  return std::strtod(text.c_str() + at + mark.size(), nullptr);
}

TEST_F(Refused, WhatDoesNotFitSaysHowMuchIsNeededAndFree) {
  write_config("huge", {{"hidden_size", 65536},
                        {"intermediate_size", 262144},
                        {"num_hidden_layers", 500},
                        {"num_attention_heads", 512},
                        {"num_key_value_heads", 64},
                        {"head_dim", 128}});
  const Ending ending = run({{"model.path", at("huge")}, {"train.micro_batch", "8"}, {"train.global_batch", "8"}});
  EXPECT_EQ(ending.code, 3) << ending.message;
  EXPECT_CONTAINS(ending.message, "needs");
  EXPECT_CONTAINS(ending.message, "free");
  EXPECT_CONTAINS(ending.message, "smaller model");
  const ModelConfig config = read_hf_config(folder_ / "huge").model;
  const double needed = number_after(ending.message, "needs ") * 0x1p30;
  EXPECT_GT(needed, 16.0 * static_cast<double>(config.parameters()));
  EXPECT_LT(needed, 16.1 * static_cast<double>(config.parameters()));
}

// Batches that only a data centre could hold: planning them must not take what they would.
TEST_F(Refused, WhatDoesNotFitIsNotTriedOut) {
  write_config("long", {{"max_position_embeddings", 1 << 20}});
  const Ending ending = run({{"model.path", at("long")},
                             {"data.sequence_length", "1M"},
                             {"train.micro_batch", "2000"},
                             {"train.global_batch", "2000000000"}});
  EXPECT_EQ(ending.code, 3) << ending.message;
  EXPECT_CONTAINS(ending.message, "needs");
}

TEST_F(Refused, SettingsThatDoNotBelongTogether) {
  expect_refused(ExitCode::usage, {{"data.sequence_length", "65"}}, {"data.sequence_length is 65", "64"});
  write_config("small", {{"vocab_size", 258}, {"bos_token_id", 256}, {"eos_token_id", 257}});
  expect_refused(ExitCode::usage, {{"model.path", at("small")}}, {"tokenizer has 259 ids", "vocab_size is 258"});
  write_config("exact", {{"vocab_size", 259}});
  EXPECT_EQ(run({{"model.path", at("exact")}}, "none", true).code, 0);
}

TEST_F(Refused, NothingLeftToTrainOnNamesTheLimit) {
  write_file(folder_ / "short.txt", "ab");
  expect_refused(ExitCode::usage, {{"data.train", at("short.txt")}, {"data.validation", "0.5"}},
                 {"no row is left for training", "data.sequence_length is 16"});
  write_file(folder_ / "empty.txt", "");
  expect_refused(ExitCode::bad_file, {{"data.train", at("empty.txt")}}, {"empty"});
}

TEST_F(Refused, AnEarlierRunIsNeitherOverwrittenNorMixedUp) {
  expect_done({{"train.steps", "3"}});
  const auto before = files_of(folder_ / "run/checkpoints" / step_name(3));
  const std::string recipe = read_file(folder_ / "run/recipe.yaml"), plan = read_file(folder_ / "run/plan.json"),
                    metrics = read_file(folder_ / "run/metrics.jsonl");
  expect_refused(ExitCode::usage, {}, {at("run"), "step 3", "--resume auto"});
  write_config("other", {{"intermediate_size", 56}});
  write_file(folder_ / "more.txt", tiny_text(500, 9));
  expect_refused(ExitCode::usage, {{"model.path", at("other")}}, {"model.path"}, "auto");
  expect_refused(ExitCode::usage, {{"data.train", at("more.txt")}}, {"data"}, "auto");
  expect_refused(ExitCode::usage, {{"train.seed", "4"}}, {"train.seed"}, "auto");
  expect_refused(ExitCode::bad_file, {}, {"nowhere"}, at("nowhere"));
  EXPECT_EQ(files_of(folder_ / "run/checkpoints" / step_name(3)), before);
  EXPECT_EQ(read_file(folder_ / "run/recipe.yaml"), recipe);
  EXPECT_EQ(read_file(folder_ / "run/plan.json"), plan);
  EXPECT_EQ(read_file(folder_ / "run/metrics.jsonl"), metrics);
}

class Result : public RunTest {
 protected:
  /// What `action` prints to standard output.
  static std::string output_of(const std::function<int()>& action) {
    testing::internal::CaptureStdout();
    try {
      EXPECT_EQ(action(), 0);
    } catch (const UserError& error) {
      ADD_FAILURE() << error.what();
    }
    return testing::internal::GetCapturedStdout();
  }
};

TEST_F(Result, EvaluatesToTheTrainersLastValidationLoss) {
  for (const auto& [precision, word] : {std::pair{Precision::fp32, "fp32"}, {Precision::bf16, "bf16"}}) {
    const std::string name = word;
    expect_done({{"train.precision", word}, {"output", at(name)}});
    const nlohmann::json trained = metrics_of(folder_ / name).back();
    const EvalOptions options{.model = at(name + "/model"),
                              .data = {at("held.txt")},
                              .sequence_length = 16,
                              .batch = 2,
                              .threads = 1,
                              .precision = precision,
                              .json = true};
    const LogCapture log;
    const nlohmann::json result = nlohmann::json::parse(output_of([&] { return evaluate(options); }));
    EXPECT_EQ(result.at("loss"), trained.at("validation_loss")) << word;
    EXPECT_EQ(result.at("tokens"), trained.at("validation_tokens"));
  }
}

/// The likeliest continuation of a text, each token from a forward pass over everything before it.
std::string greedy(const fs::path& folder, std::string text, size_t count) {
  const HfConfig config = read_hf_config(folder);
  PlannedEngine model(config.model, {.sequence_length = 64});
  const WeightReader reader(folder, model->transformer().parameters());
  for (size_t i = 0; i < model->master().size(); ++i) reader.read(i, model->master()[i]);
  const TensorView& head = model->master()[model->transformer().parameters().head()];
  const MemoryBlock block(size_t{16} << 20);
  Arena arena(block.data(), block.bytes());
  Context ctx{model.device, model.stream, arena};
  for (size_t n = 0; n < count; ++n) {
    ArenaScope scope(arena);
    std::vector<int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
    const auto length = static_cast<int64_t>(tokens.size());
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<int32_t> zeros(tokens.size());
    const DeviceBatch batch = DeviceBatch(arena, 1, length).upload(ctx, 1, length, tokens, zeros, positions, zeros);
    MicroBatchMemory memory = model->transformer().allocate(arena, length, true);
    model->transformer().forward(ctx, batch, model->weights(), memory);
    const float* x = memory.final_norm.as<float>() + (length - 1) * config.model.hidden;
    double best = -INFINITY;
    int64_t chosen = 0;
    for (int64_t v = 0; v < config.model.vocabulary; ++v) {
      double logit = 0;
      for (int64_t i = 0; i < config.model.hidden; ++i) logit += x[i] * head.as<float>()[v * config.model.hidden + i];
      if (logit > best) best = logit, chosen = v;
    }
    if (chosen > 255) break;
    text.push_back(static_cast<char>(chosen));
  }
  return text;
}

TEST_F(Result, GeneratesTheLikeliestTextWithoutTemperature) {
  expect_done({{"evaluate.every", "0"}, {"train.steps", "60"}});
  GenerateOptions options{.model = at("run/model"),
                          .prompt = "the cat",
                          .max_tokens = 40,
                          .temperature = 0,
                          .threads = 1,
                          .precision = Precision::fp32};
  const std::string text = output_of([&] { return generate(options); });
  EXPECT_EQ(text, greedy(folder_ / "run/model", options.prompt, 40) + "\n");
  options.seed = 2;
  EXPECT_EQ(output_of([&] { return generate(options); }), text);
  // Drawn texts depend on the seed alone.
  options.temperature = 1;
  const std::string drawn = output_of([&] { return generate(options); });
  EXPECT_EQ(output_of([&] { return generate(options); }), drawn);
  options.seed = 3;
  EXPECT_NE(output_of([&] { return generate(options); }), drawn);
  // The model's 64 positions are the end of every text; then comes a newline.
  options.max_tokens = 1000;
  options.prompt = std::string(59, 'a');
  EXPECT_LE(output_of([&] { return generate(options); }).size(), 65u);
  options.prompt = std::string(64, 'a');
  EXPECT_CONTAINS(error_of([&] { generate(options); }, ExitCode::usage), "The prompt has 64 tokens");
}

TEST_F(Result, BringsItsTokenizerAlong) {
  expect_done({{"train.steps", "3"}});
  EXPECT_EQ(load_tokenizer(at("run/model"))->encode("cat"), (std::vector<int32_t>{'c', 'a', 't'}));
  expect_done({{"train.steps", "3"}}, "auto");  // writes the model again
  // A tokenizer that was named by its file.
  expect_done({{"train.steps", "3"}, {"model.tokenizer", at("run/model/tokenizer.json")}, {"output", at("second")}});
  EXPECT_EQ(load_tokenizer(at("second/model"))->vocabulary_size(), 259);
}

// What a run wrote at its end is what its last checkpoint exports; an older one is the run as it was.
TEST_F(Result, AnyCheckpointCanBeExported) {
  expect_done({{"train.steps", "6"}});
  const auto want = files_of(folder_ / "run/model");
  const auto export_run = [&](const ExportOptions& options) {
    const Ending ending = ending_of([&] { return export_checkpoint(options); });
    EXPECT_EQ(ending.code, 0) << ending.message;
    return ending;
  };
  fs::remove_all(folder_ / "run/model");
  const Ending ending = export_run({.source = at("run")});
  EXPECT_CONTAINS(ending.log, "model of step 6 written to " + at("run/model"));
  EXPECT_TRUE(files_of(folder_ / "run/model") == want);
  export_run({.source = at("run/checkpoints/step-000006/"), .output = at("elsewhere")});
  EXPECT_TRUE(files_of(folder_ / "elsewhere") == want);
  export_run({.source = at("run/checkpoints/step-000004")});
  const auto older = files_of(folder_ / "run/model-step-000004");
  EXPECT_EQ(older.size(), want.size());
  EXPECT_FALSE(older.at("model.safetensors") == want.at("model.safetensors"));
  export_run({.source = at("run"), .output = at("half"), .precision = Precision::bf16});
  EXPECT_LT(fs::file_size(folder_ / "half/model.safetensors"), fs::file_size(folder_ / "elsewhere/model.safetensors"));

  const auto refused = [&](const ExportOptions& options, ExitCode code, const std::string& part) {
    EXPECT_CONTAINS(error_of([&] { export_checkpoint(options); }, code), part);
  };
  refused({.source = at("nothing")}, ExitCode::usage, "does not exist");
  refused({.source = at("run/model")}, ExitCode::usage, "is a Hugging Face folder already");
  refused({.source = at("run"), .format = ExportFormat::gguf}, ExitCode::usage, "--to gguf is not built yet");
  refused({.source = at("run"), .output = at("run/checkpoints")}, ExitCode::bad_file, "isn't part of a model");
  write_config("model", {{"intermediate_size", 64}});
  refused({.source = at("run")}, ExitCode::bad_file, "is not a checkpoint of the model whose config is in");
  fs::remove(folder_ / "run/recipe.yaml");
  refused({.source = at("run")}, ExitCode::bad_file, "recipe.yaml: is missing");
  fs::remove_all(folder_ / "run/checkpoints");
  fs::create_directory(folder_ / "run/checkpoints");
  refused({.source = at("run")}, ExitCode::bad_file, "has no whole checkpoint");
}

}  // namespace
}  // namespace yoke::test
