// Runs that were stopped, torn or left without room, continued bit for bit.
#include "checkpoint/training_state.h"
#include "tests/train/run_support.h"

namespace yoke::test {
namespace {

class Resume : public RunTest {
 protected:
  /// A copy of the finished run as it was after `step`, with what it had written to metrics.jsonl since.
  void copy_until(const std::string& from, const std::string& to, int64_t step) {
    fs::copy(folder_ / from, folder_ / to, fs::copy_options::recursive);
    fs::remove_all(folder_ / to / "model");
    for (const auto& entry : fs::directory_iterator(folder_ / to / "checkpoints")) {
      if (entry.path().filename().string() > step_name(step)) fs::remove_all(entry.path());
    }
  }
};

// 50 rows, 4 a step: step 13 reaches over the end of the first epoch, step 25 ends with the second.
TEST_F(Resume, GoesOnBitForBitFromAnyStep) {
  expect_done({});
  for (const int64_t step : {7, 12, 25}) {
    SCOPED_TRACE(step);
    const std::string name = fmt::format("from{}", step);
    copy_until("run", name, step);
    expect_done({{"output", at(name)}}, "auto");
    expect_same_run(folder_ / name, folder_ / "run", step_name(30));
  }
}

TEST_F(Resume, GoesOnBitForBitInSixteenBits) {
  // Weights as large as these overflow fp16's first loss scales, so that the scaler has a state to lose.
  write_config("wild", {{"initializer_range", 1.5}});
  for (const std::string precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const Overrides common{{"train.precision", precision}, {"model.path", at(precision == "fp16" ? "wild" : "model")}};
    const auto with_output = [&](const std::string& name) {
      Overrides all = common;
      all["output"] = at(name);
      return all;
    };
    expect_done(with_output(precision));
    if (precision == "fp16") {
      EXPECT_GT(metrics_of(folder_ / precision).front().at("skipped"), 0);
    }
    copy_until(precision, precision + "-parts", 13);
    expect_done(with_output(precision + "-parts"), "auto");
    expect_same_run(folder_ / (precision + "-parts"), folder_ / precision, step_name(30));
  }
}

/// Settings that decide what an optimizer keeps; each run goes on bit for bit.
TEST_F(Resume, GoesOnBitForBitWhateverTheOptimizerKeeps) {
  write_config("wide", {{"hidden_size", 64}, {"intermediate_size", 96}});  // most matrices are large enough for int8
  const std::vector<Overrides> all = {
      {{"memory.moments", "bf16"}, {"memory.master", "none"}, {"memory.gradients", "bf16"}},
      {{"memory.moments", "int8"}, {"memory.consume_gradients", "true"}, {"train.micro_batch", "auto"}},
      {{"train.optimizer", "muon"}, {"memory.moments", "bf16"}},
      {{"train.optimizer", "adafactor"}, {"memory.master", "none"}},
      {{"train.optimizer", "sgd"}, {"memory.moments", "int8"}},
      {{"train.optimizer", "sgd"}, {"train.momentum", "0"}}};
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(fmt::format("{}", all[i]));
    Overrides overrides = all[i];
    overrides.insert({{"model.path", at("wide")}, {"train.precision", "bf16"}, {"checkpoint.every", "13"}});
    overrides["output"] = at(fmt::format("whole{}", i));
    expect_done(overrides);
    copy_until(fmt::format("whole{}", i), fmt::format("parts{}", i), 13);
    overrides["output"] = at(fmt::format("parts{}", i));
    expect_done(overrides, "auto");
    expect_same_run(folder_ / fmt::format("parts{}", i), folder_ / fmt::format("whole{}", i), step_name(30));
  }
}

TEST_F(Resume, AStateOfOtherFormatsIsRefused) {
  expect_done({{"checkpoint.every", "0"}});
  expect_refused(ExitCode::usage, {{"memory.moments", "int8"}},
                 {"memory.moments fp32, this one has int8", "--memory.moments fp32"}, "auto");
  expect_refused(ExitCode::usage, {{"train.optimizer", "muon"}},
                 {"train.optimizer adamw, this one has muon", "--train.optimizer adamw"}, "auto");
  expect_refused(ExitCode::usage, {{"memory.master", "none"}, {"train.precision", "bf16"}},
                 {"memory.master fp32, this one has none"}, "auto");
}

// A run that stopped where its recipe said so, not by an accident.
TEST_F(Resume, ALongerRunGoesOnFromAShorterOne) {
  const Overrides constant{{"train.schedule", "constant"}, {"evaluate.every", "5"}};
  const auto with = [&](const std::string& steps, const std::string& name) {
    Overrides all = constant;
    all["train.steps"] = steps;
    all["output"] = at(name);
    return all;
  };
  expect_done(with("20", "whole"));
  expect_done(with("10", "parts"));
  expect_done(with("20", "parts"), "auto");
  expect_same_run(folder_ / "parts", folder_ / "whole", step_name(20));
  // Once more with nothing left to do: nothing changes.
  expect_done(with("20", "parts"), "auto");
  expect_same_run(folder_ / "parts", folder_ / "whole", step_name(20));
}

TEST_F(Resume, EpochsEndWhereTheyShouldAfterAResume) {
  expect_done({{"train.epochs", "1.5"}, {"output", at("whole")}});
  EXPECT_EQ(metrics_of(folder_ / "whole").back().at("step"), 19);  // 75 rows: 18 steps of 4 and one of 3
  EXPECT_EQ(metrics_of(folder_ / "whole")[metrics_of(folder_ / "whole").size() - 2].at("tokens"), 75 * 16);
  copy_until("whole", "parts", 12);
  expect_done({{"train.epochs", "1.5"}, {"output", at("parts")}}, "auto");
  expect_same_run(folder_ / "parts", folder_ / "whole", step_name(19));
}

// The program is stopped somewhere between steps; going on leads to where an undisturbed run leads.
TEST_F(Resume, AStoppedProgramCanBeContinued) {
  const auto with_output = [&](const std::string& name) {
    return Overrides{{"train.steps", "120"}, {"checkpoint.every", "9"}, {"output", at(name)}};
  };
  expect_done(with_output("whole"));
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    const std::string name = ::sigabbrev_np(signal);
    SCOPED_TRACE(name);
    std::vector<std::string> words{"train", at("recipe.yaml")};
    for (const auto& [key, value] : with_output(name)) words.insert(words.end(), {"--" + key, value});
    YokeProcess process(words);
    ASSERT_TRUE(process.read_until("step 20/")) << process.text();
    process.send(signal);
    EXPECT_EQ(process.wait(), signal == SIGKILL ? 128 + SIGKILL : 6) << process.text();
    EXPECT_EQ(contains(process.text(), "--resume auto"), signal != SIGKILL);
    EXPECT_FALSE(fs::exists(folder_ / name / "model"));
    const auto left = find_checkpoints(folder_ / name / "checkpoints", CheckDepth::hashes);
    ASSERT_FALSE(left.empty());
    EXPECT_GE(left[0].step, 18);
    EXPECT_LT(left[0].step, 120);
    expect_done(with_output(name), "auto");
    expect_same_run(folder_ / name, folder_ / "whole", step_name(120));
  }
}

class Torn : public Resume {};

TEST_F(Torn, ADamagedCheckpointIsSkippedWithAReason) {
  expect_done({});
  const std::vector<std::function<void(const fs::path&)>> damages = {
      [](const fs::path& p) { fs::resize_file(p / "rank-0000-00001.safetensors", 1000); },
      [](const fs::path& p) { fs::remove(p / "complete"); },
      [](const fs::path& p) {
        std::string content = read_file(p / "rank-0000-00001.safetensors");
        content[content.size() / 2] ^= 1;
        write_file(p / "rank-0000-00001.safetensors", content);
      }};
  for (size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string name = fmt::format("torn{}", i);
    copy_until("run", name, 20);
    const fs::path newest = folder_ / name / "checkpoints" / step_name(20);
    damages[i](newest);
    // Asked for by name, it is an error.
    if (i == 0) expect_refused(ExitCode::bad_file, {{"output", at(name)}}, {step_name(20)}, newest.string());
    const Ending ending = run({{"output", at(name)}}, "auto");
    EXPECT_EQ(ending.code, 0) << ending.message;
    EXPECT_CONTAINS(ending.log, step_name(20));
    EXPECT_CONTAINS(ending.log, "resumed from " + at(name) + "/checkpoints/" + step_name(19));
    expect_same_run(folder_ / name, folder_ / "run", step_name(30));
  }
}

// Files may not grow beyond 200 KiB: checkpoints (390 KB) fail, the model (130 KB) does not.
TEST_F(Torn, ARunWithoutRoomForCheckpointsTrainsToItsEnd) {
  expect_done({{"output", at("free")}});
  YokeProcess process({"train", at("recipe.yaml"), "--checkpoint.every", "10"}, 200 << 10);
  EXPECT_EQ(process.wait(), 4) << process.text();
  EXPECT_CONTAINS(process.text(), "checkpoint at step 10 was not written");
  EXPECT_CONTAINS(process.text(), "checkpoint at step 20 was not written");
  EXPECT_TRUE(find_checkpoints(folder_ / "run/checkpoints", CheckDepth::sizes).empty());
  EXPECT_TRUE(fs::is_empty(folder_ / "run/checkpoints"));
  EXPECT_EQ(files_of(folder_ / "run/model"), files_of(folder_ / "free/model"));
  EXPECT_EQ(metrics_of(folder_ / "run"), metrics_of(folder_ / "free"));
}

TEST_F(Torn, AModelThatCannotBeWrittenLeavesTheStateBehind) {
  expect_done({{"output", at("free")}});
  YokeProcess process({"train", at("recipe.yaml"), "--checkpoint.every", "0"}, 100 << 10);
  EXPECT_EQ(process.wait(), 4) << process.text();
  EXPECT_FALSE(fs::exists(folder_ / "run/model"));
  // Without a checkpoint either, there is nothing but the message.
  fs::create_directory(folder_ / "free/model/mine");
  EXPECT_EQ(run({{"output", at("free")}}, "auto").code, 4) << "a folder with something else in it is not replaced";
  fs::remove_all(folder_ / "free/model");
  expect_done({{"output", at("free")}}, "auto");
}

}  // namespace
}  // namespace yoke::test
