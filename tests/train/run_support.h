// Whole runs of training: in this process, or by the program itself.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <limits>
#include <map>

#include "tests/train/support.h"
#include "train/commands.h"

namespace yoke::test {

struct Ending {
  int code = 0;         ///< exit code
  std::string message;  ///< of the UserError, if one ended the run
  std::string log;
};

/// A folder with a tiny model's config, a corpus of 50 rows of 16 tokens, a held-out text and a recipe.
class RunTest : public testing::Test {
 protected:
  static constexpr int64_t kRows = 50;

  RunTest() {
    fs::create_directory(folder_ / "model");
    write_config("model");
    write_file(folder_ / "train.txt", tiny_text(kRows * 16 - 1));
    write_file(folder_ / "held.txt", tiny_text(150, 2));
    write_file(folder_ / "recipe.yaml", fmt::format(R"(model: {{path: {0}/model, init: random, tokenizer: bytes}}
data: {{train: ["{0}/train.txt"], validation: ["{0}/held.txt"], sequence_length: 16}}
train:
  steps: 30
  micro_batch: 2
  global_batch: 4
  precision: fp32
  learning_rate: 1e-2
  warmup: 3
  seed: 3
threads: 1
checkpoint: {{every: 1, keep: 1000}}
evaluate: {{every: 7}}
log: {{every: 1}}
output: {0}/run
)",
                                                    folder_.path().string()));
  }

  void write_config(const std::string& name, const nlohmann::json& changes = {}, const std::string& family = "Llama") {
    fs::create_directories(folder_ / name);
    write_file(folder_ / name / "config.json", tiny_config(family, changes).dump());
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  using Overrides = std::map<std::string, std::string>;

  Ending run(const Overrides& overrides = {}, const std::string& resume = "none", bool dry = false) {
    TrainOptions options{.recipe = at("recipe.yaml"), .resume = resume, .dry_run = dry};
    for (const auto& [key, value] : overrides) options.overrides.push_back({key, value});
    return ending_of([&] { return train(options); });
  }

  /// What `action` does to the process's exit code; its progress lines are swallowed.
  static Ending ending_of(const std::function<int()>& action) {
    const LogCapture log;
    Ending ending;
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    try {
      ending.code = action();
    } catch (const UserError& error) {
      ending.code = static_cast<int>(error.code());
      ending.message = error.what();
    }
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    ending.log = log.text();
    return ending;
  }

  void expect_done(const Overrides& overrides, const std::string& resume = "none") {
    const Ending ending = run(overrides, resume);
    ASSERT_EQ(ending.code, 0) << ending.message << ending.log;
  }

  void expect_refused(ExitCode code, const Overrides& overrides, const std::vector<std::string>& parts,
                      const std::string& resume = "none") {
    const Ending ending = run(overrides, resume);
    EXPECT_EQ(ending.code, static_cast<int>(code)) << ending.message;
    for (const std::string& part : parts) EXPECT_CONTAINS(ending.message, part);
  }

  Scratch folder_{Scratch::Where::memory};
};

inline std::string step_name(int64_t step) { return fmt::format("step-{:06}", step); }

/// The lines of metrics.jsonl without what a clock decides.
inline std::vector<nlohmann::json> metrics_of(const fs::path& output) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(output / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    nlohmann::json json = nlohmann::json::parse(line);
    for (const char* key : {"tokens_per_second", "mfu", "seconds", "validation_seconds", "slow_ranks"}) json.erase(key);
    lines.push_back(std::move(json));
  }
  return lines;
}

/// File name to content.
inline std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

/// Two runs that ended with the same state, model and metrics, bit for bit.
inline void expect_same_run(const fs::path& got, const fs::path& want, const std::string& last_checkpoint) {
  EXPECT_EQ(metrics_of(got), metrics_of(want));
  for (const std::string& folder : {std::string("model"), "checkpoints/" + last_checkpoint}) {
    const auto a = files_of(got / folder), b = files_of(want / folder);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, content] : b) EXPECT_TRUE(a.at(name) == content) << folder << "/" << name;
  }
}

/// Of the ranks that mpirun started for a recipe, the process of one.
inline pid_t process_of_rank(const std::string& recipe, int rank) {
  const auto fields = [](const fs::path& file) {
    std::vector<std::string> all;
    std::ifstream in(file, std::ios::binary);
    for (std::string field; std::getline(in, field, '\0');) all.push_back(field);
    return all;
  };
  for (const auto& entry : fs::directory_iterator("/proc")) {
    if (!std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0]))) continue;
    const auto line = fields(entry.path() / "cmdline"), environment = fields(entry.path() / "environ");
    const auto has = [](const auto& list, const std::string& text) {
      return std::find(list.begin(), list.end(), text) != list.end();
    };
    if (!line.empty() && line[0] == YOKE_BINARY && has(line, recipe) &&
        has(environment, fmt::format("OMPI_COMM_WORLD_RANK={}", rank))) {
      return std::stoi(entry.path().filename().string());
    }
  }
  ADD_FAILURE() << "no rank " << rank;
  return std::numeric_limits<pid_t>::max();  // nobody
}

/// The program in a process of its own. Its standard error comes through a pipe of one page: a program that writes a
/// line each step cannot run ahead of who reads.
class YokeProcess {
 public:
  /// `file_limit`: bytes that a file may have at most; 0: no limit.
  explicit YokeProcess(const std::vector<std::string>& words, uint64_t file_limit = 0) {
    std::vector<char*> argv{const_cast<char*>(YOKE_BINARY)};
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int null = ::open("/dev/null", O_WRONLY);
      ::dup2(null, STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      const rlimit limit{file_limit, file_limit};
      if (file_limit > 0) ::setrlimit(RLIMIT_FSIZE, &limit);
      ::execv(YOKE_BINARY, argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  YokeProcess(const YokeProcess&) = delete;
  YokeProcess& operator=(const YokeProcess&) = delete;
  ~YokeProcess() {
    ::close(pipe_);
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
  }

  /// Reads on until `part` has come. False when the program ended without it.
  bool read_until(const std::string& part) {
    while (!contains(text_, part)) {
      if (!read_some()) return false;
    }
    return true;
  }
  /// The same for the `times`-th place.
  bool read_until(const std::string& part, int times) {
    const auto found = [&] {
      int n = 0;
      for (size_t at = text_.find(part); at != std::string::npos; at = text_.find(part, at + 1)) ++n;
      return n;
    };
    while (found() < times) {
      if (!read_some()) return false;
    }
    return true;
  }
  void send(int signal) const { ::kill(pid_, signal); }
  /// Reads the rest and waits: the exit code, or 128 and the signal that killed it.
  int wait() {
    while (read_some()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& text() const { return text_; }

 private:
  bool read_some() {
    char buffer[512];
    const ssize_t n = ::read(pipe_, buffer, sizeof buffer);
    if (n > 0) text_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string text_;
};

}  // namespace yoke::test
