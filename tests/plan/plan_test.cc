// `yoke plan` as a program of its own: exit codes, streams, and how little it takes to plan a large model.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "tests/train/support.h"

namespace yoke {
namespace {

struct Ended {
  int code = -1;
  std::string out, err;
  double seconds = 0;
  size_t peak_resident = 0;  ///< bytes
};

class PlanCommand : public testing::Test {
 protected:
  PlanCommand() {
    write_file(folder_ / "model.json", test::tiny_config("Llama").dump());
    write_file(folder_ / "recipe.yaml", fmt::format("model: {{path: {}/model.json}}\ndata: {{train: [gone/*.txt], "
                                                    "sequence_length: 32}}\ntrain: {{steps: 3}}\n",
                                                    folder_.path().string()));
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  Ended plan(std::vector<std::string> words) const {
    words.insert(words.begin(), {YOKE_BINARY, "plan"});
    return execute(std::move(words));
  }
  Ended execute(std::vector<std::string> words) const {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const auto begin = std::chrono::steady_clock::now();
    const pid_t child = ::fork();
    if (child == 0) {
      for (const auto& [name, stream] : {std::pair{"out", STDOUT_FILENO}, {"err", STDERR_FILENO}}) {
        ::dup2(::open(at(name).c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), stream);
      }
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    int status = 0;
    rusage usage{};
    EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .out = read_file(at("out")),
            .err = read_file(at("err")),
            .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
            .peak_resident = static_cast<size_t>(usage.ru_maxrss) * 1024};
  }

  /// Plans `asked` with a limit that is too low for it: each offer is a command for a shell, as it stands, that fits
  /// and leaves the 16 sequences of a step. Returns how many there are.
  int expect_offers(std::vector<std::string> asked, int64_t limit) const {
    asked.insert(asked.end(), {"--memory.recompute", "none", "--memory.limit", std::to_string(limit)});
    const Ended refused = plan(asked);
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_CONTAINS(refused.err, "memory.limit is");
    std::istringstream lines(refused.err);
    int offers = 0;
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("yoke plan ");
      if (!line.starts_with("  ") || at == line.npos) continue;
      ++offers;
      const std::string command = YOKE_BINARY + line.substr(at + 4);
      const Ended fits = execute({"/bin/sh", "-c", command});
      EXPECT_EQ(fits.code, 0) << line << "\n" << fits.err;
      const Ended json = execute({"/bin/sh", "-c", command + " --json"});
      const nlohmann::json settings = nlohmann::json::parse(json.out)["predicted"]["settings"];
      EXPECT_EQ(settings["micro_batch"].get<int>() * settings["micro_batches"].get<int>(), 16) << line;
    }
    return offers;
  }

  test::Scratch folder_{test::Scratch::Where::memory};
};

// Neither the data nor the weights nor a tokenizer are there.
TEST_F(PlanCommand, ARecipeThatFits) {
  const Ended table = plan({at("recipe.yaml")});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(table.err, "");
  for (const char* part : {"master weights", "moments", "gate_up", "peak: ", "capacity: ", "fits: ", "1 x 32 tokens"}) {
    EXPECT_CONTAINS(table.out, part);
  }
  const Ended json = plan({at("recipe.yaml"), "--json", "--gpu", "4090", "--data.sequence_length", "64"});
  EXPECT_EQ(json.code, 0) << json.err;
  const nlohmann::json parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["device"], "RTX 4090");
  EXPECT_EQ(parsed["fits"], true);
  size_t sum = 0;
  for (const auto& item : parsed["predicted"]["items"]) sum += item["bytes"].get<size_t>();
  EXPECT_EQ(parsed["predicted"]["resident_bytes"], sum);
}

// The tiny model's longest sequence is shorter than a recipe's default.
TEST_F(PlanCommand, AModelByItself) {
  const Ended file = plan({at("model.json"), "--gpu", "L4"});
  EXPECT_EQ(file.code, 0) << file.err;
  EXPECT_CONTAINS(file.out, "1 x 64 tokens");
  std::filesystem::create_directory(folder_ / "model");
  std::filesystem::copy(folder_ / "model.json", folder_ / "model" / "config.json");
  const Ended folder = plan({at("model"), "--gpu", "L4", "--train.micro_batch", "3", "--svg", at("p.svg")});
  EXPECT_EQ(folder.code, 0) << folder.err;
  EXPECT_CONTAINS(folder.out, "3 x 64 tokens");
  EXPECT_TRUE(read_file(at("p.svg")).starts_with("<svg "));
}

TEST_F(PlanCommand, Mistakes) {
  const auto expect = [&](const std::vector<std::string>& words, int code, const std::string& part) {
    const Ended ended = plan(words);
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_CONTAINS(ended.err, part);
    EXPECT_EQ(ended.out, "");
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  };
  expect({at("recipe.yaml"), "--gpu", "RTX 4900"}, 2, "'RTX 4090'");
  expect({at("recipe.yaml"), "--gpus", "8", "--parallel.data", "3"}, 2, "parallel asks for 3 ranks");
  expect({at("recipe.yaml"), "--nodes", "0"}, 2, "at least 1");
  expect({at("recipe.yaml"), "--train.micro_batch", "1e9"}, 2, "train.micro_batch");
  expect({at("recipe.yaml"), "--train.stepz", "1"}, 2, "'--train.steps'");
  expect({at("recipe.yaml"), "--svg", at("no/such.svg")}, 4, "no/such.svg");
  expect({at("nothing.yaml")}, 2, "nothing.yaml");
  expect({at("nothing.json")}, 4, "nothing.json");
  write_file(folder_ / "absurd.json", test::tiny_config("Llama", {{"hidden_size", 1'000'000'000'000}}).dump());
  expect({at("absurd.json")}, 4, "hidden_size is 1000000000000");
}

TEST_F(PlanCommand, WhatIsOfferedFits) {
  write_file(folder_ / "model.json", test::tiny_config("Llama", {{"num_hidden_layers", 8},
                                                                 {"hidden_size", 256},
                                                                 {"intermediate_size", 1024},
                                                                 {"head_dim", 64},
                                                                 {"max_position_embeddings", 1024}})
                                         .dump());
  std::filesystem::rename(folder_ / "recipe.yaml", folder_ / "a recipe's.yaml");
  std::vector<std::vector<std::string>> machines{{"--gpu", "RTX 4090"}};
#ifndef __SANITIZE_ADDRESS__  // changes what a process holds from one start to the next, which counts on this machine
  machines.push_back({});
#endif
  for (const std::vector<std::string>& machine : machines) {
    std::vector<std::string> asked{
        at("a recipe's.yaml"), "--data.sequence_length", "512", "--train.micro_batch", "16", "--data.train",
        "x y/*.txt,z"};
    asked.insert(asked.end(), machine.begin(), machine.end());
    const auto needed = [&](const std::vector<std::string>& more) {
      std::vector<std::string> words = asked;
      words.insert(words.end(), more.begin(), more.end());
      words.push_back("--json");
      return nlohmann::json::parse(plan(words).out)["predicted"]["resident_bytes"].get<int64_t>();
    };
    const int64_t whole = needed({"--memory.recompute", "none"});
    const std::vector<std::string> smallest{"--memory.recompute",   "block", "--train.micro_batch",  "1",
                                            "--train.global_batch", "16",    "--memory.loss_chunks", "8"};
    std::vector<std::string> int8 = smallest;
    int8.insert(int8.end(), {"--memory.moments", "int8"});
    const int64_t least = needed(smallest), less = needed(int8);
    ASSERT_LT(least + (64 << 20), whole);
    ASSERT_LT(less + (16 << 20), least);
    EXPECT_GE(expect_offers(asked, least + (whole - least) / 3), 2);
    // Formats are offered where nothing else is enough.
    EXPECT_EQ(expect_offers(asked, less + (least - less) / 2), 1);
    if (machine.empty()) continue;
    // 16-bit formats of a precision that is left open.
    std::vector<std::string> bf16 = int8;
    bf16.insert(bf16.end(), {"--train.precision", "bf16", "--memory.gradients", "bf16", "--memory.master", "none"});
    const int64_t none = needed(bf16);
    ASSERT_LT(none + (8 << 20), less);
    EXPECT_EQ(expect_offers(asked, none + (less - none) / 8), 1);
  }
}

TEST_F(PlanCommand, A405BModelIsPlannedInLessThanAGigabyte) {
  write_file(folder_ / "405b.json", test::tiny_config("Llama", {{"vocab_size", 128256},
                                                                {"hidden_size", 16384},
                                                                {"num_hidden_layers", 126},
                                                                {"num_attention_heads", 128},
                                                                {"num_key_value_heads", 8},
                                                                {"head_dim", 128},
                                                                {"intermediate_size", 53248},
                                                                {"max_position_embeddings", 131072}})
                                        .dump());
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{},
                                             {"--gpu", "B200 SXM"},
                                             {"--gpu", "B200 SXM", "--data.sequence_length", "131072",
                                              "--train.micro_batch", "16", "--train.global_batch", "1048576"}}) {
    std::vector<std::string> words{at("405b.json"), "--json", "--svg", at("405b.svg")};
    words.insert(words.end(), more.begin(), more.end());
    const Ended ended = plan(words);
    EXPECT_EQ(ended.code, 3);
    EXPECT_CONTAINS(ended.err, "405b.json needs ");
    EXPECT_EQ(nlohmann::json::parse(ended.out)["parameters"], 405'853'388'800);
    EXPECT_LT(ended.peak_resident, 1'000'000'000u);
    fmt::print("405B, {} options: {:.2f} s, {:.0f} MB\n", more.size() / 2, ended.seconds,
               static_cast<double>(ended.peak_resident) * 1e-6);
  }
}

}  // namespace
}  // namespace yoke
