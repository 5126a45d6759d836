// The resident memory of whole runs against the plan that was made before the first step: from the kernel's high-water
// mark of the process, for models of 1M to 300M parameters over precisions, recompute settings, loss chunks and
// starts. A run loads weights, trains, evaluates, writes checkpoints and exports its model; it must never hold more
// than planned, and at most 3 % + 30 MB less.
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/train/run_support.h"

namespace yoke::test {
namespace {

struct Size {
  int64_t hidden, layers, heads, kv_heads, mlp, vocabulary;
};
constexpr Size k1M{128, 4, 4, 4, 384, 512}, k5M{256, 5, 8, 2, 768, 4096}, k25M{288, 6, 6, 6, 768, 32000},
    k134M{768, 12, 12, 12, 2048, 32000}, k300M{1024, 20, 16, 4, 2816, 32000};

struct Case {
  const char* name;
  Size size;
  std::map<std::string, std::string> overrides;
};

class Resident : public RunTest {
 protected:
  /// The program's exit code and the most that it had resident, bytes.
  std::pair<int, size_t> run_program(std::vector<std::string> words) const {
    words.insert(words.begin(), YOKE_BINARY);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const int log = ::open((disk_ / "log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    int status = 0;
    rusage usage{};
    ::wait4(child, &status, 0, &usage);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, static_cast<size_t>(usage.ru_maxrss) * 1024};
  }

  void expect_as_planned(const Case& c, const std::string& resume = "none") {
    SCOPED_TRACE(c.name);
    fs::create_directories(disk_ / "model");
    write_file(disk_ / "model/config.json", tiny_config("Llama", {{"hidden_size", c.size.hidden},
                                                                  {"num_hidden_layers", c.size.layers},
                                                                  {"num_attention_heads", c.size.heads},
                                                                  {"num_key_value_heads", c.size.kv_heads},
                                                                  {"head_dim", c.size.hidden / c.size.heads},
                                                                  {"intermediate_size", c.size.mlp},
                                                                  {"vocab_size", c.size.vocabulary},
                                                                  {"max_position_embeddings", 4096},
                                                                  {"initializer_range", 0.02}})
                                                .dump());
    std::map<std::string, std::string> overrides{{"model.path", (disk_ / "model").string()},
                                                 {"data.train", (disk_ / "text.txt").string()},
                                                 {"data.validation", at("held.txt")},
                                                 {"data.sequence_length", "128"},
                                                 {"train.micro_batch", "1"},
                                                 {"train.global_batch", "1"},
                                                 {"train.steps", "2"},
                                                 {"train.warmup", "0"},
                                                 {"threads", "2"},
                                                 {"memory.recompute", "none"},
                                                 {"evaluate.every", "1"},
                                                 {"checkpoint.every", "0"},
                                                 {"output", (disk_ / "run").string()}};
    for (const auto& [key, value] : c.overrides) overrides[key] = value;
    std::vector<std::string> words{"train", at("recipe.yaml"), "--resume", resume};
    for (const auto& [key, value] : overrides) words.insert(words.end(), {"--" + key, value});
    const auto [code, peak] = run_program(words);
    ASSERT_EQ(code, 0) << read_file(disk_ / "log");
    const nlohmann::json plan = nlohmann::json::parse(read_file(disk_ / "run/plan.json"));
    const auto planned = plan.at("predicted").at("resident_bytes").get<size_t>();
    EXPECT_EQ(plan.at("predicted").at("peak_bytes"), plan.at("measured").at("peak_bytes"));
    EXPECT_LE(peak, planned);
    if (overrides.contains("memory.limit")) {
      EXPECT_LE(peak, size_t{600000000});
    }
    EXPECT_LE(static_cast<double>(planned), 1.03 * static_cast<double>(peak) + 30e6);
    fmt::print("{:<40} planned {:7.1f} MiB, held {:7.1f} MiB\n", c.name, static_cast<double>(planned) / 0x1p20,
               static_cast<double>(peak) / 0x1p20);
  }

  Resident() { write_file(disk_ / "text.txt", tiny_text(3000000)); }

  Scratch disk_{Scratch::Where::disk};
};

TEST_F(Resident, NeverAboveThePlanAndCloseToIt) {
  const Case cases[] = {
      {"1M fp32", k1M, {{"train.precision", "fp32"}, {"train.micro_batch", "8"}, {"train.global_batch", "16"}}},
      {"1M bf16 block", k1M, {{"train.precision", "bf16"}, {"memory.recompute", "block"}}},
      {"1M fp16 norms", k1M, {{"train.precision", "fp16"}, {"memory.recompute", "norms"}, {"threads", "1"}}},
      {"5M bf16 8 chunks",
       k5M,
       {{"train.precision", "bf16"},
        {"memory.loss_chunks", "8"},
        {"train.micro_batch", "16"},
        {"train.global_batch", "32"}}},
      {"25M bf16", k25M, {{"train.precision", "bf16"}, {"train.micro_batch", "8"}, {"train.global_batch", "8"}}},
      {"25M fp16 mlp", k25M, {{"train.precision", "fp16"}, {"memory.recompute", "mlp"}}},
      {"25M fp32 attention in 3 layers, 2 chunks",
       k25M,
       {{"train.precision", "fp32"},
        {"memory.recompute", "attention"},
        {"memory.recompute_layers", "3"},
        {"memory.loss_chunks", "2"},
        {"train.micro_batch", "4"},
        {"train.global_batch", "8"}}},
      {"134M bf16", k134M, {{"train.precision", "bf16"}, {"train.micro_batch", "4"}, {"train.global_batch", "4"}}},
      {"25M bf16 bf16 moments",
       k25M,
       {{"train.precision", "bf16"},
        {"memory.moments", "bf16"},
        {"train.micro_batch", "4"},
        {"train.global_batch", "8"}}},
      {"25M bf16 muon, open settings and a limit",
       k25M,
       {{"train.precision", "bf16"},
        {"train.optimizer", "muon"},
        {"memory.recompute", "auto"},
        {"train.micro_batch", "auto"},
        {"train.global_batch", "8"},
        {"memory.limit", "600MB"}}},
      {"134M bf16 block, int8 moments, consumed",
       k134M,
       {{"train.precision", "bf16"},
        {"memory.recompute", "block"},
        {"memory.moments", "int8"},
        {"memory.consume_gradients", "true"}}},
      {"134M fp32 attention", k134M, {{"train.precision", "fp32"}, {"memory.recompute", "attention"}}},
      {"300M bf16 block", k300M, {{"train.precision", "bf16"}, {"memory.recompute", "block"}}},
  };
  for (const Case& c : cases) {
    expect_as_planned(c);
    fs::remove_all(disk_ / "run");
  }
}

TEST_F(Resident, AlsoWithPretrainedWeightsAndOnResuming) {
  const Case first{"134M bf16, 1 step", k134M, {{"train.precision", "bf16"}, {"train.steps", "1"}}};
  expect_as_planned(first);
  expect_as_planned({"134M bf16, resumed", k134M, {{"train.precision", "bf16"}, {"train.steps", "2"}}}, "auto");
  fs::rename(disk_ / "run/model", disk_ / "pretrained");
  fs::remove_all(disk_ / "run");
  expect_as_planned(
      {"134M fp32, pretrained",
       k134M,
       {{"train.precision", "fp32"}, {"model.init", "pretrained"}, {"model.path", (disk_ / "pretrained").string()}}});
}

}  // namespace
}  // namespace yoke::test
