// Command lines: what they mean, what mistakes lead to, and the completion scripts in the shells themselves.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/frame.h"

namespace yoke {
namespace {

/// The program's command line without its work: actions only note what they were told.
class CommandLine : public ::testing::Test {
 protected:
  CommandLine() {
    app_.set_version_flag("--version", "yoke 1.2.3");
    app_.require_subcommand(1);
    add_train_command(app_, [this](const TrainOptions& options) {
      train_ = options;
      if (act_) act_();
    });
    add_plan_command(app_, [this](const PlanOptions& options) { plan_ = options; });
    add_generate_command(app_, [this](const GenerateOptions& options) { generate_ = options; });
    add_eval_command(app_, [this](const EvalOptions& options) { eval_ = options; });
    add_export_command(app_, [this](const ExportOptions& options) { export_ = options; });
    add_launch_command(app_);
    add_completion_command(app_);
    add_unbuilt_commands(app_);
  }

  int run(std::vector<const char*> words) {
    words.insert(words.begin(), "yoke");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = run_app(app_, static_cast<int>(words.size()), words.data());
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return code;
  }
  void expect_error(const std::vector<const char*>& words, int code, const std::vector<std::string>& fragments) {
    EXPECT_EQ(run(words), code);
    for (const std::string& fragment : fragments) EXPECT_NE(err_.find(fragment), std::string::npos) << err_;
    EXPECT_TRUE(err_.starts_with("yoke: ")) << err_;
    EXPECT_EQ(out_, "");
    EXPECT_FALSE(train_ || plan_ || generate_ || eval_ || export_);
  }

  CLI::App app_{"yoke", "yoke"};
  std::optional<TrainOptions> train_;
  std::optional<PlanOptions> plan_;
  std::optional<GenerateOptions> generate_;
  std::optional<EvalOptions> eval_;
  std::optional<ExportOptions> export_;
  std::function<void()> act_;
  std::string out_, err_;
};

TEST_F(CommandLine, Train) {
  EXPECT_EQ(run({"train", "r.yaml"}), 0);
  EXPECT_EQ(train_->recipe, "r.yaml");
  EXPECT_EQ(train_->resume, "none");
  EXPECT_TRUE(train_->overrides.empty());
  EXPECT_FALSE(train_->dry_run || train_->verbose || train_->profile);
}

TEST_F(CommandLine, TrainWithEverything) {
  EXPECT_EQ(run({"train",
                 "--train.steps",
                 "10",
                 "--train.betas=[0.9, 0.95]",
                 "r.yaml",
                 "--data.train",
                 "a.txt,b.txt",
                 "--device",
                 "cpu",
                 "--train.weight_decay",
                 "-1",
                 "--data.validation",
                 "[a, 'b c']",
                 "--resume",
                 "runs/x/checkpoints/step-000200",
                 "--dry-run",
                 "--verbose",
                 "--profile",
                 "--train.steps",
                 "20"}),
            0);
  EXPECT_EQ(train_->recipe, "r.yaml");
  EXPECT_EQ(train_->resume, "runs/x/checkpoints/step-000200");
  EXPECT_TRUE(train_->dry_run && train_->verbose && train_->profile);
  std::map<std::string, std::string> overrides;
  for (const RecipeOverride& one : train_->overrides) overrides[one.key] = one.value;
  EXPECT_EQ(overrides, (std::map<std::string, std::string>{{"train.steps", "20"},
                                                           {"train.betas", "[0.9, 0.95]"},
                                                           {"data.train", "a.txt,b.txt"},
                                                           {"device", "cpu"},
                                                           {"train.weight_decay", "-1"},
                                                           {"data.validation", "[a, 'b c']"}}));
}

TEST_F(CommandLine, Plan) {
  EXPECT_EQ(run({"plan", "m/", "--gpu", "RTX 4090", "--train.micro_batch", "4", "--json", "--svg", "a.svg", "--device",
                 "auto"}),
            0);
  EXPECT_EQ(plan_->target, "m/");
  EXPECT_EQ(plan_->gpu, "RTX 4090");
  EXPECT_EQ(plan_->gpus, std::nullopt);
  EXPECT_EQ(plan_->nodes, std::nullopt);
  EXPECT_TRUE(plan_->json);
  EXPECT_EQ(plan_->svg, "a.svg");
  ASSERT_EQ(plan_->overrides.size(), 2u);
  for (const RecipeOverride& one : plan_->overrides) {
    EXPECT_TRUE((one.key == "train.micro_batch" && one.value == "4") || (one.key == "device" && one.value == "auto"));
  }
}

TEST_F(CommandLine, Generate) {
  EXPECT_EQ(run({"generate", "m",     "--prompt",    "Once\nupon", "--max-tokens", "5", "--temperature", "0",
                 "--top-k",  "40",    "--top-p",     "0.5",        "--seed",       "9", "--stop",        "a b",
                 "--stop",   "[x,y]", "--tokenizer", "bytes",      "--threads",    "2", "--precision",   "fp32"}),
            0);
  EXPECT_EQ(generate_->model, "m");
  EXPECT_EQ(generate_->prompt, "Once\nupon");
  EXPECT_EQ(generate_->max_tokens, 5);
  EXPECT_EQ(generate_->temperature, 0);
  EXPECT_EQ(generate_->top_k, 40);
  EXPECT_EQ(generate_->top_p, 0.5);
  EXPECT_EQ(generate_->seed, 9);
  EXPECT_EQ(generate_->stop, (std::vector<std::string>{"a b", "[x,y]"}));
  EXPECT_EQ(generate_->tokenizer, "bytes");
  EXPECT_EQ(generate_->threads, 2);
  EXPECT_EQ(generate_->precision, Precision::fp32);
}

TEST_F(CommandLine, GenerateTakesAnyPrompt) {
  EXPECT_EQ(run({"generate", "m", "--prompt", ""}), 0);
  EXPECT_EQ(generate_->prompt, "");
  EXPECT_EQ(run({"generate", "m", "--prompt=--help"}), 0);
  EXPECT_EQ(generate_->prompt, "--help");
  EXPECT_EQ(run({"generate", "m", "--prompt", "[a, b]"}), 0);
  EXPECT_EQ(generate_->prompt, "[a, b]");
}

TEST_F(CommandLine, Eval) {
  EXPECT_EQ(run({"eval", "m", "--data", "a.txt", "b*.txt", "--data", "c", "--format", "jsonl", "--sequence-length",
                 "128", "--batch", "4", "--json"}),
            0);
  EXPECT_EQ(eval_->model, "m");
  EXPECT_EQ(eval_->data, (std::vector<std::string>{"a.txt", "b*.txt", "c"}));
  EXPECT_EQ(eval_->format, Format::jsonl);
  EXPECT_EQ(eval_->sequence_length, 128);
  EXPECT_EQ(eval_->batch, 4);
  EXPECT_TRUE(eval_->json);
  EXPECT_FALSE(eval_->precision || eval_->threads || eval_->tokenizer);
}

TEST_F(CommandLine, MistakesGetTheNearestLegalName) {
  expect_error({}, 2, {"needs a command", "train", "generate"});
  expect_error({"trian", "r.yaml"}, 2, {"no command 'trian'", "Did you mean 'train'?"});
  expect_error({"--versoin"}, 2, {"no option --versoin", "'--version'"});
  expect_error({"train", "r.yaml", "--train.stepz", "5"}, 2, {"--train.stepz", "'--train.steps'", "yoke train --help"});
  expect_error({"train", "--dryrun", "r.yaml"}, 2, {"'--dry-run'"});
  expect_error({"train"}, 2, {"yoke train", "RECIPE"});
  expect_error({"train", "a.yaml", "b.yaml"}, 2, {"unexpected argument 'b.yaml'"});
  expect_error({"train", "r.yaml", "--train.steps"}, 2, {"--train.steps"});
  expect_error({"train", "r.yaml", "--resume", "auto", "--resume", "none"}, 2, {"--resume"});
  expect_error({"plan"}, 2, {"yoke plan", "TARGET"});
  expect_error({"plan", "m", "--gup", "x"}, 2, {"'--gpu'"});
  expect_error({"plan", "m", "--gpus", "two"}, 2, {"--gpus"});
  expect_error({"generate", "m", "--promt", "x"}, 2, {"'--prompt'"});
  expect_error({"generate", "m"}, 2, {"--prompt"});
  expect_error({"generate", "m", "--prompt", "x", "--top-p", "1.5"}, 2, {"--top-p"});
  expect_error({"generate", "m", "--prompt", "x", "--max-tokens", "0"}, 2, {"--max-tokens"});
  expect_error({"generate", "m", "--prompt", "x", "--max-tokens", "99999999999999999999"}, 2, {"--max-tokens"});
  expect_error({"generate", "m", "--prompt", "x", "--threads", "two"}, 2, {"--threads"});
  expect_error({"generate", "m", "--prompt", "x", "--temperature", "nan"}, 2, {"--temperature"});
  expect_error({"generate", "m", "--prompt", "x", "--precision", "bf61"}, 2, {"bf16 | fp16 | fp32", "'bf16'"});
  expect_error({"eval", "m", "--data", "a", "--format", "jsnl"}, 2, {"'jsonl'"});
  expect_error({"completion", "bsh"}, 2, {"'bash'"});
  expect_error({"completion"}, 2, {"yoke completion needs a command", "bash"});
}

TEST_F(CommandLine, Launch) {
  expect_error({"launch"}, 2, {"slurm, kubernetes"});
  expect_error({"launch", "slrm", "r.yaml"}, 2, {"'slurm'"});
  expect_error({"launch", "slurm"}, 2, {"RECIPE"});
  expect_error({"launch", "slurm", "/none/r.yaml"}, 2, {"/none/r.yaml"});
  expect_error({"launch", "slurm", "r.yaml", "--mpi", "none"}, 2, {"pmix"});
  expect_error({"launch", "kubernetes", "r.yaml"}, 2, {"--image"});
  expect_error({"launch", "kubernetes", "r.yaml", "--image", "i"}, 2, {"--claim"});
}

TEST_F(CommandLine, Export) {
  EXPECT_EQ(run({"export", "runs/a", "--to", "hf"}), 0);
  EXPECT_EQ(export_->source, "runs/a");
  EXPECT_EQ(export_->format, ExportFormat::hf);
  EXPECT_FALSE(export_->output || export_->precision);
  export_.reset();
  expect_error({"export", "runs/a"}, 2, {"--to"});
  expect_error({"export", "runs/a", "--to", "hg"}, 2, {"hf | peft | gguf", "'hf'"});
  expect_error({"export", "--to", "hf"}, 2, {"RUN"});
}

TEST_F(CommandLine, UnbuiltCommandsSaySo) {
  for (const char* name : {"merge", "doctor", "bench", "dashboard"}) {
    expect_error({name, "x", "--json", "--to", "hf"}, 2, {std::string("yoke ") + name + " is not built yet"});
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_EQ(run({name, "--help"}), 0);
  }
}

TEST_F(CommandLine, HelpAndVersion) {
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_EQ(out_, "yoke 1.2.3\n");
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_NE(out_.find("train"), std::string::npos);
  for (const char* command : {"train", "plan", "generate", "eval", "completion"}) {
    EXPECT_EQ(run({command, "--help"}), 0);
    EXPECT_NE(out_.find("Examples:"), std::string::npos) << out_;
    EXPECT_NE(out_.find(std::string("yoke ") + command), std::string::npos) << out_;
  }
  EXPECT_EQ(run({"train", "--help"}), 0);
  for (const std::string& key : recipe_keys()) EXPECT_NE(out_.find("--" + key), std::string::npos) << key;
  EXPECT_FALSE(train_);
}

TEST_F(CommandLine, WhatIsThrownDecidesTheExitCode) {
  for (int code = 2; code <= 7; ++code) {
    act_ = [code] { throw UserError(static_cast<ExitCode>(code), "what to do"); };
    EXPECT_EQ(run({"train", "r.yaml"}), code);
    EXPECT_EQ(err_, "yoke: what to do\n");
  }
  act_ = [] { throw std::bad_alloc(); };
  EXPECT_EQ(run({"train", "r.yaml"}), 3);
  act_ = [] { throw std::runtime_error("odd"); };
  EXPECT_EQ(run({"train", "r.yaml"}), 1);
  EXPECT_NE(err_.find("odd"), std::string::npos);
  act_ = [] { fail_file("{}: is torn.", "x"); };
  EXPECT_EQ(run({"train", "r.yaml"}), 4);
}

TEST_F(CommandLine, LostOutputIsAFailure) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/full", "w", stdout) == nullptr) _exit(99);
    const char* words[] = {"yoke", "completion", "bash"};
    _exit(run_app(app_, 3, words));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 4);
}

/// What `command` prints; absent when the shell isn't installed.
std::optional<std::string> shell_output(const std::string& shell, const std::string& script,
                                        const std::string& commands) {
  if (std::system(("command -v " + shell + " >/dev/null 2>&1").c_str()) != 0) return {};
  std::string folder = (std::filesystem::temp_directory_path() / "yoke_completion_XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/completion") << script;
  std::ofstream(folder + "/test") << "source " + folder + "/completion\n" + commands;
  const int status = std::system((shell + " " + folder + "/test >" + folder + "/out 2>&1").c_str());
  const std::string out = read_file(folder + "/out");
  EXPECT_EQ(status, 0) << out;
  std::filesystem::remove_all(folder);
  return out;
}

TEST_F(CommandLine, BashCompletes) {
  const auto out = shell_output("bash", completion_script(app_, Shell::bash), R"(
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _yoke; echo "${COMPREPLY[*]}"; }
complete_words yoke tr
complete_words yoke train --train.st
complete_words yoke train r.yaml --dry
complete_words yoke completion ""
complete_words yoke generate m --top
complete_words yoke train /proc/meminf
)");
  if (!out) GTEST_SKIP() << "bash is not installed";
  EXPECT_EQ(*out, "train\n--train.steps\n--dry-run\nbash zsh fish\n--top-k --top-p\n/proc/meminfo\n");
}

TEST_F(CommandLine, FishCompletes) {
  const auto out = shell_output("fish", completion_script(app_, Shell::fish), R"(
complete -C "yoke tr" | cut -f1
complete -C "yoke train r.yaml --train.st" | cut -f1
complete -C "yoke completion " | cut -f1
complete -C "yoke generate m --top" | cut -f1
)");
  if (!out) GTEST_SKIP() << "fish is not installed";
  EXPECT_EQ(*out, "train\n--train.steps\nbash\nfish\nzsh\n--top-k\n--top-p\n");
}

TEST_F(CommandLine, ZshCompletes) {
  // Stand-ins for the three completion builtins only, which need a line editor.
  const auto out = shell_output("zsh", "compdef() {}\n" + completion_script(app_, Shell::zsh), R"(
_describe() { for item in "${(@P)2}"; do [[ $item == $PREFIX* ]] && echo -n "${item%%:*} "; done; echo; }
_files() { echo files; }
complete_words() { local -a words; words=("$@"); local CURRENT=$# PREFIX=${@[-1]}; _yoke; }
complete_words yoke tr
complete_words yoke train --train.st
complete_words yoke completion ""
complete_words yoke generate m --top
complete_words yoke train x
)");
  if (!out) GTEST_SKIP() << "zsh is not installed";
  EXPECT_EQ(*out, "train \n--train.steps \nbash zsh fish \n--top-k --top-p \nfiles\n");
}

}  // namespace
}  // namespace yoke
