// Recipes: good ones mean what docs/recipe.md says, bad ones end with a message that names place, key and what is
// legal.
#include "train/recipe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/file.h"

namespace yoke {
namespace {

const std::string kSmallest = "model: {path: m}\ndata: {train: a.txt}\ntrain: {steps: 10}\n";

/// The message of the error, which has to be a usage error.
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string parse_error(const std::string& text, const std::vector<RecipeOverride>& overrides = {}) {
  return message_of([&] { parse_recipe(text, "r.yaml", overrides); });
}

Recipe parse(const std::string& text, const std::vector<RecipeOverride>& overrides = {}) {
  return parse_recipe(text, "r.yaml", overrides).recipe;
}

TEST(Recipe, ReadsEveryKeyOfTheInterface) {
  const Recipe recipe = parse(R"(
model:
  path: SmolLM2-135M/          # Hugging Face folder
  init: random
  tokenizer: bytes
data:
  train: [corpus/*.txt, more]
  validation: 0.02
  format: jsonl
  sequence_length: 512
  packing: false
train:
  steps: 2000
  micro_batch: 4
  global_batch: 64
  precision: bf16
  optimizer: adamw
  learning_rate: 3.0e-4
  schedule: wsd
  warmup: 100
  decay_steps: 0.5k
  final_learning_rate: 3.0e-5
  weight_decay: 0.2
  betas: [0.8, 0.99]
  epsilon: 1e-6
  clip_norm: 0
  seed: 7
adapter: {type: lora, rank: 8, alpha: 16, dropout: 0.1, targets: [q_proj, v_proj], quantization: int8,
          double_quantization: false}
memory:
  recompute: block
  moments: int8
  offload: [optimizer, weights]
  loss_chunks: 8
parallel: {data: 2, zero: 3, tensor: 4, pipeline: 5, context: 6, shard: 4, schedule: interleaved, virtual_stages: 3, timeout: 30}
device: cpu
threads: 3
checkpoint: {every: 50, keep: 2}
evaluate: {every: 0}
log: {every: 5, tensorboard: true}
output: runs/corpus
)");
  Recipe want;
  want.model = {"SmolLM2-135M/", Initialisation::random, "bytes"};
  want.data = {{"corpus/*.txt", "more"}, {0.02, {}}, DataFormat::jsonl, 512, false};
  want.train.steps = 2000;
  want.train.micro_batch = 4;
  want.train.global_batch = 64;
  want.train.precision = Precision::bf16;
  want.train.learning_rate = 3e-4;
  want.train.schedule = ScheduleKind::wsd;
  want.train.warmup = 100;
  want.train.decay_steps = 500;
  want.train.final_learning_rate = 3e-5;
  want.train.weight_decay = 0.2;
  want.train.betas = {0.8, 0.99};
  want.train.epsilon = 1e-6;
  want.train.clip_norm = 0;
  want.train.seed = 7;
  want.adapter = {AdapterKind::lora, 8, 16, 0.1, {"q_proj", "v_proj"}, Quantization::int8, false};
  want.memory = {Recompute::block, {}, MomentsFormat::int8, {Offload::optimizer, Offload::weights}, 8, {}};
  want.parallel = {2, 3, 4, 5, 6, 4, PipelineSchedule::interleaved, 3, 30};
  want.device = DeviceChoice::cpu;
  want.threads = 3;
  want.checkpoint = {50, 2};
  want.evaluate = {0};
  want.log = {5, true};
  want.output = "runs/corpus";
  EXPECT_EQ(recipe, want);
}

TEST(Recipe, DefaultsFollowFromOtherValues) {
  const Recipe recipe = parse(kSmallest, {{"train.micro_batch", "4"}, {"train.learning_rate", "1e-2"}});
  EXPECT_EQ(recipe.train.global_batch, 4);
  EXPECT_DOUBLE_EQ(recipe.train.final_learning_rate, 1e-3);
  EXPECT_EQ(recipe.output, "runs/r");
  EXPECT_FALSE(recipe.train.precision);
  EXPECT_FALSE(recipe.model.tokenizer);
  EXPECT_EQ(parse(kSmallest, {{"train.schedule", "constant"}}).train.final_learning_rate, 3e-4);
}

TEST(Recipe, NumbersTakeSuffixesAndExponentsExactly) {
  const std::pair<const char*, int64_t> cases[] = {{"7", 7},
                                                   {"1.5G", 1500000000},
                                                   {"2k", 2000},
                                                   {"0.25M", 250000},
                                                   {"3T", 3000000000000},
                                                   {"1e9", 1000000000},
                                                   {"1E+3", 1000},
                                                   {"1200e-2", 12},
                                                   {"9223372036854775807", INT64_MAX},
                                                   {"\"10\"", 10},
                                                   {"+5", 5},
                                                   {"0005", 5}};
  for (const auto& [text, want] : cases) {
    const Recipe recipe = parse(fmt::format("model: {{path: m}}\ndata: {{train: a}}\ntrain: {{tokens: {}}}\n", text));
    EXPECT_EQ(recipe.train.tokens, want) << text;
  }
}

TEST(Recipe, ValidationIsAFractionOrFiles) {
  const auto read = [](const std::string& value) {
    return parse(kSmallest, {{"data.validation", value}}).data.validation;
  };
  EXPECT_EQ(read("0.5"), (Validation{0.5, {}}));
  EXPECT_EQ(read("none"), Validation{});
  EXPECT_EQ(read("0"), Validation{});
  EXPECT_EQ(read("a.txt,b c.txt"), (Validation{0, {"a.txt", "b c.txt"}}));
  EXPECT_EQ(read("2nd.txt"), (Validation{0, {"2nd.txt"}}));
  EXPECT_EQ(read("['0.5']"), (Validation{0, {"0.5"}}));
}

struct Bad {
  const char* text;       ///< replaces or follows the smallest recipe's lines
  const char* fragments;  ///< separated by `|`, all of them in the message
};

TEST(Recipe, BadRecipesAreNamed) {
  const std::string head = "model: {path: m}\ndata: {train: a.txt}\n";
  const Bad cases[] = {
      // Keys.
      {"train: {steps: 1, learning_rat: 1}", "r.yaml:3:19|train.learning_rat|'train.learning_rate'"},
      {"train: {steps: 1}\nlearning_rate: 1", "r.yaml:4:1|learning_rate|'train.learning_rate'"},
      {"train: {steps: 1}\ndevise: cpu", "r.yaml:4:1|'device'"},
      {"train: {steps: 1}\nmemory: {precision: bf16}", "memory.precision|'train.precision'"},
      {"train: {steps: 1}\nmemory: {zzzzzzzzzzzzzzzzzzzzzzz: 1}", "Legal keys|memory.recompute|memory.moments"},
      {"train: {steps: 1, steps: 2}", "train.steps is there twice|r.yaml:3:16"},
      {"train: {steps: 1}\ntrain: {seed: 2}", "section train is there twice|r.yaml:4:1"},
      {"train: {steps: 1}\n[a, b]: 1", "a key must be a word"},
      {"train: 5", "r.yaml:3:8|train is a section"},
      {"train: {steps: 1}\noutput: {a: 1}", "output is a map of keys"},
      // Types.
      {"train: {steps: ten}", "r.yaml:3:16|train.steps is 'ten'|whole number of at least 1"},
      {"train: {steps: 1.5}", "train.steps is '1.5'"},
      {"train: {steps: [1]}", "a list of 1 values"},
      {"train: {steps: }", "train.steps is empty"},
      {"train: {steps: ''}", "train.steps is empty"},
      {"train: {steps: 0x10}", "train.steps is '0x10'"},
      {"train: {steps: 10K}", "train.steps is '10K'|2k"},
      {"train: {steps: 1 000}", "train.steps is '1 000'"},
      {"train: {steps: true}", "train.steps is 'true'"},
      {"train: {steps: 1, learning_rate: fast}", "train.learning_rate is 'fast'|a number above 0"},
      {"train: {steps: 1, precision: bf61}", "train.precision is 'bf61'|auto, or bf16 | fp16 | fp32|'bf16'"},
      {"train: {steps: 1, schedule: cosin}", "constant | linear | cosine | wsd|Did you mean 'cosine'"},
      {"train: {steps: 1, optimizer: adamsgd}", "train.optimizer is 'adamsgd'|adamw"},
      {"train: {steps: 1, betas: 0.9}", "train.betas is '0.9'|a list of two"},
      {"train: {steps: 1, betas: [0.9, 1]}", "train.betas|to below 1"},
      {"train: {steps: 1, betas: [0.9, [1]]}", "train.betas"},
      {"train: {steps: 1}\nmemory: {offload: [optimizer, optimizer]}", "memory.offload|at most once"},
      {"train: {steps: 1}\nmemory: {offload: disk}", "memory.offload is 'disk'|optimizer | activations | weights"},
      {"train: {steps: 1}\nlog: {tensorboard: maybe}", "log.tensorboard is 'maybe'|true or false"},
      {"train: {steps: 1}\nthreads: many", "threads is 'many'|auto, or a whole number from 1 to 4096"},
      // Impossible sizes.
      {"train: {steps: 0}", "train.steps is '0'"},
      {"train: {steps: -5}", "train.steps is '-5'"},
      {"train: {steps: 9223372036854775808}", "train.steps"},
      {"train: {steps: 1e300}", "train.steps is '1e300'"},
      {"train: {steps: 1e99999999999}", "train.steps"},
      {"train: {tokens: 10000000T}", "train.tokens"},
      {"train: {steps: 1, micro_batch: 0}", "train.micro_batch is '0'|from 1 to"},
      {"train: {steps: 1, micro_batch: 3G}", "train.micro_batch is '3G'"},
      {"train: {steps: 1, micro_batch: 16M}", "micro-batch must stay below 2147483648"},
      {"train: {steps: 1, learning_rate: 0}", "train.learning_rate is '0'"},
      {"train: {steps: 1, learning_rate: nan}", "train.learning_rate is 'nan'"},
      {"train: {steps: 1, learning_rate: inf}", "train.learning_rate is 'inf'"},
      {"train: {steps: 1, learning_rate: 1e999}", "train.learning_rate is '1e999'"},
      {"train: {epochs: 0}", "train.epochs is '0'"},
      {"train: {steps: 1}\nparallel: {zero: 4}", "parallel.zero is '4'|from 0 to 3"},
      {"train: {steps: 1}\ncheckpoint: {keep: 0}", "checkpoint.keep is '0'"},
      {"train: {steps: 1}\nlog: {every: 0}", "log.every is '0'"},
      // Values that don't fit each other.
      {"train: {}", "the run has no length|train.steps, train.epochs and train.tokens"},
      {"train:", "the run has no length"},
      {"train: {steps: 1, epochs: 1}", "r.yaml:3:27|train.steps and train.epochs are both given"},
      {"train: {steps: 1, micro_batch: 4, global_batch: 63}", "r.yaml:3:49|multiple of train.micro_batch (4)|60 or 64"},
      {"train: {steps: 1, micro_batch: 4, global_batch: 3}", "4, 8 or 12"},
      {"train: {steps: 10, warmup: 11}", "train.warmup is 11 steps|at most the run's 10 steps"},
      {"train: {steps: 10, warmup: 5, decay_steps: 6, schedule: wsd}", "train.decay_steps is 6|10 - 5 = 5"},
      {"train: {steps: 10, schedule: wsd}", "schedule wsd needs train.decay_steps"},
      {"train: {steps: 1, learning_rate: 1e-3, final_learning_rate: 1e-2}", "at most train.learning_rate"},
      {"train: {steps: 1}\nmemory: {loss_chunks: 1025}", "memory.loss_chunks is 1025|1024 tokens"},
      // YAML.
      {"train: {steps: 1", "r.yaml:|is not YAML"},
      {"train:\n\tsteps: 1", "is not YAML"},
      {"train: {steps: 1}\n---\na: 1", "2 YAML documents"},
      {"train: {steps: 1}\noutput: *.txt", "r.yaml:4|quoted"},
      {"train: {steps: 1}\nmemory: {master: none}",
       "r.yaml:4|memory.master is none|train.precision is auto and must be bf16"},
      {"train: {steps: 1, precision: fp32}\nmemory: {gradients: bf16}",
       "r.yaml:4|train.precision is fp32 and must be bf16"},
      {"train: {steps: 1, global_batch: 2}\nmemory: {consume_gradients: true}",
       "r.yaml:4|train.global_batch is 2 and must be train.micro_batch, which is 1"},
      {"train: {steps: 1, precision: fp16}\nmemory: {consume_gradients: true}",
       "r.yaml:4|precision fp16|bf16 and fp32"},
      {"train: {steps: 1, optimizer: adafactor}\nmemory: {moments: int8}", "r.yaml:4|memory.moments is int8|use fp32"},
      {"train: {steps: 1}\nparallel: {pipeline: 2, virtual_stages: 2}",
       "r.yaml:4|parallel.virtual_stages is 2|parallel.schedule 1f1b|use 1, or the schedule interleaved"},
      {"train: {steps: 1}\nparallel: {schedule: interleaved, virtual_stages: 2}",
       "r.yaml:4|parallel.virtual_stages is 2|parallel.pipeline is 1"},
      {"train: {steps: 1}\nparallel: {pipeline: 2, schedule: interleaved}",
       "r.yaml:4|parallel.schedule is interleaved|virtual_stages from 2 on"},
      {"train: {steps: 1}\nmemory: {consume_gradients: true}\nparallel: {pipeline: 2}",
       "r.yaml:4|memory.consume_gradients|parallel.pipeline is 2"},
      {"train: {steps: 1, momentum: 0.5}", "r.yaml:3|train.momentum|train.optimizer is adamw"},
      {"train: {steps: 1}\noutput: \"\xff\xfe\"", "is not UTF-8 text"},
  };
  for (const Bad& bad : cases) {
    const std::string message = parse_error(head + bad.text + "\n");
    std::string fragments = bad.fragments;
    // " | " belongs to a message, "|" alone separates.
    for (size_t begin = 0; begin < fragments.size();) {
      size_t end = begin;
      do {
        end = std::min(fragments.find('|', end + 1), fragments.size());
      } while (end < fragments.size() && fragments[end - 1] == ' ');
      const std::string fragment = fragments.substr(begin, end - begin);
      EXPECT_NE(message.find(fragment), std::string::npos) << bad.text << "\n  " << message << "\n  lacks " << fragment;
      begin = end + 1;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Recipe, MissingPartsAreNamed) {
  EXPECT_NE(parse_error("").find("model.path is missing"), std::string::npos);
  EXPECT_NE(parse_error("# nothing\n").find("model.path is missing"), std::string::npos);
  EXPECT_NE(parse_error("model: {path: m}").find("data.train is missing"), std::string::npos);
  EXPECT_NE(parse_error("just text").find("a recipe is a map"), std::string::npos);
  EXPECT_NE(parse_error(std::string("a\0b", 3)).find("not UTF-8"), std::string::npos);
  EXPECT_NE(message_of([] { load_recipe("no/such/recipe.yaml"); }).find("no/such/recipe.yaml"), std::string::npos);
  EXPECT_NE(message_of([] { load_recipe("/"); }).find("regular file"), std::string::npos);
}

TEST(Recipe, HostileYamlIsBounded) {
  const std::string head = kSmallest + "output: ";
  for (const std::string open : {"[", "{a: ", "- "}) {
    std::string nested;
    for (int i = 0; i < 100000; ++i) nested += open;
    parse_error(head + nested);
  }
  std::string bomb = kSmallest + "a: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 30; ++i) {
    bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  }
  parse_error(bomb);
  parse_error(kSmallest + "output: &a [*a]\n");
  EXPECT_LT(parse_error(kSmallest + std::string(900000, 'k') + ": 1").size(), 2000u);
  EXPECT_LT(parse_error(kSmallest + "device: " + std::string(900000, 'v')).size(), 2000u);
  EXPECT_EQ(parse_error(kSmallest + "device: \"\\x1b[2J\"").find('\x1b'), std::string::npos);
  EXPECT_EQ(parse_error(kSmallest + "\"\\x1b[2J\": 1").find('\x1b'), std::string::npos);
}

TEST(Recipe, MutatedRecipesNeverCrash) {
  const std::string good = resolved_yaml(parse_recipe(kSmallest, "r.yaml"));
  std::mt19937 random(1);
  int parsed = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = good;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      const std::string_view bytes = "[]{}:,&*!|>'\"%@`-?# \t\n09.ek~\xc3\x80";
      switch (random() % 3) {
        case 0:
          text[at] = bytes[random() % bytes.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, 1, bytes[random() % bytes.size()]);
      }
      if (text.empty()) text = " ";
    }
    try {
      parse_recipe(text, "r.yaml");
      ++parsed;
    } catch (const UserError& error) {
      ASSERT_EQ(error.code(), ExitCode::usage);
    }
  }
  EXPECT_GT(parsed, 0);
}

TEST(Recipe, CommandLineOverrides) {
  const LoadedRecipe loaded = parse_recipe(kSmallest, "r.yaml",
                                           {{"train.steps", "1k"},
                                            {"data.train", "a.txt,b*.txt"},
                                            {"train.betas", "[0.5, 0.6]"},
                                            {"train.seed", "2"},
                                            {"train.seed", "3"},
                                            {"output", "with, comma"}});
  EXPECT_EQ(loaded.recipe.train.steps, 1000);
  EXPECT_EQ(loaded.recipe.data.train, (std::vector<std::string>{"a.txt", "b*.txt"}));
  EXPECT_EQ(loaded.recipe.train.betas, (std::array<double, 2>{0.5, 0.6}));
  EXPECT_EQ(loaded.recipe.train.seed, 3);
  EXPECT_EQ(loaded.recipe.output, "with, comma");
  EXPECT_EQ(loaded.origins.at("train.steps"), "command line");
  EXPECT_EQ(loaded.origins.at("model.path"), "r.yaml:1:15");
  EXPECT_FALSE(loaded.origins.contains("train.warmup"));

  EXPECT_NE(parse_error(kSmallest, {{"train.stepps", "1"}}).find("'train.steps'"), std::string::npos);
  EXPECT_NE(parse_error(kSmallest, {{"train.steps", "x"}}).find("command line: train.steps is 'x'"), std::string::npos);
  EXPECT_NE(parse_error(kSmallest, {{"data.train", "[a"}}).find("not a YAML list"), std::string::npos);
  EXPECT_NE(parse_error(kSmallest, {{"data.train", "a,,b"}}).find("data.train is 'a,,b'"), std::string::npos);
  EXPECT_NE(parse_error(kSmallest, {{"data.train", ""}}).find("data.train is empty"), std::string::npos);
  EXPECT_NE(parse_error(kSmallest, {{"output", "\xff"}}).find("not UTF-8"), std::string::npos);
}

TEST(Recipe, ALengthOfTheCommandLineDisplacesTheFiles) {
  const Recipe recipe = parse(kSmallest, {{"train.tokens", "1M"}});
  EXPECT_FALSE(recipe.train.steps);
  EXPECT_EQ(recipe.train.tokens, 1000000);
  parse_error(kSmallest, {{"train.tokens", "1M"}, {"train.epochs", "1"}});
}

TEST(Recipe, ResolvedYamlReadsBackTheSame) {
  const std::string odd = "odd \"name\" # \\ \t 'x' \xe4\xb8\xad.txt";
  const std::vector<std::vector<RecipeOverride>> variants = {
      {},
      {{"train.epochs", "0.3"}, {"train.precision", "fp16"}, {"threads", "2"}, {"memory.loss_chunks", "16"}},
      {{"train.tokens", "1.5G"}, {"data.validation", "0.0123456789"}, {"train.learning_rate", "1.2345678901234e-7"}},
      {{"data.validation", "a.txt,b.txt"}, {"memory.offload", "weights"}, {"model.tokenizer", odd}},
      {{"output", odd}, {"data.train", "null,~,-,true,*,0.5"}, {"adapter.targets", "[\"a, b\", 'c''d']"}},
      {{"train.schedule", "wsd"}, {"train.decay_steps", "3"}, {"parallel.data", "8"}, {"train.clip_norm", "0"}},
  };
  for (const auto& overrides : variants) {
    const LoadedRecipe loaded = parse_recipe(kSmallest, "r.yaml", overrides);
    const std::string yaml = resolved_yaml(loaded);
    EXPECT_EQ(parse(yaml), loaded.recipe) << yaml;
    for (const RecipeOverride& override : overrides) {
      const std::string leaf = override.key.substr(override.key.find('.') + 1);
      EXPECT_NE(yaml.find(leaf + ":"), std::string::npos) << leaf;
    }
  }
  const std::string yaml = resolved_yaml(parse_recipe(kSmallest, "r.yaml", {{"train.seed", "5"}}));
  EXPECT_NE(yaml.find("  steps: 10                               # r.yaml:3:16\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("  seed: 5                                 # command line\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("  warmup: 0                               # default\n"), std::string::npos) << yaml;
}

TEST(Recipe, WhatIsNotBuiltSaysSo) {
  const std::vector<RecipeOverride> cases = {{"data.format", "chat"},     {"data.format", "alpaca"},
                                             {"data.format", "sharegpt"}, {"adapter.type", "lora"},
                                             {"adapter.type", "qlora"},   {"memory.offload", "optimizer"},
                                             {"device", "cuda"},          {"log.tensorboard", "true"}};
  for (const RecipeOverride& override : cases) {
    const Recipe recipe = parse(kSmallest, {override});
    const std::string message = message_of([&] { check_supported(recipe); });
    EXPECT_NE(message.find(override.key + ": " + override.value), std::string::npos) << message;
    EXPECT_NE(message.find("not built yet"), std::string::npos) << message;
  }
  EXPECT_NO_THROW(check_supported(parse(kSmallest)));
  EXPECT_NO_THROW(check_supported(parse(kSmallest, {{"parallel.pipeline", "2"}})));
  for (const char* recompute : {"auto", "none", "norms", "mlp", "attention", "block"}) {
    EXPECT_NO_THROW(check_supported(parse(kSmallest, {{"parallel.zero", "0"}, {"memory.recompute", recompute}})));
  }
}

TEST(Recipe, SchedulesAreCheckedOnceTheStepsAreKnown) {
  const Recipe recipe = parse(kSmallest, {{"train.epochs", "1"}, {"train.warmup", "100"}});
  EXPECT_NO_THROW(check_schedule(recipe.train, 100));
  message_of([&] { check_schedule(recipe.train, 99); });
}

TEST(Recipe, HandsTheDataLayerItsOptions) {
  const Recipe recipe = parse(kSmallest, {{"data.validation", "v.txt"}, {"train.seed", "9"}, {"data.format", "jsonl"}});
  const DataOptions options = data_options(recipe, "cache", 2);
  EXPECT_EQ(options.train, std::vector<std::string>{"a.txt"});
  EXPECT_EQ(std::get<1>(options.validation), std::vector<std::string>{"v.txt"});
  EXPECT_EQ(options.format, Format::jsonl);
  EXPECT_EQ(options.seed, 9u);
  EXPECT_NO_THROW(check(options));
}

/// Keys that docs/recipe.md explains: the first cell of each row of its tables, "| `key` |".
std::vector<std::string> documented_keys() {
  std::vector<std::string> keys;
  std::istringstream lines(read_file("docs/recipe.md"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| `")) keys.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  return keys;
}

TEST(Recipe, TheDocumentationNamesEveryKeyAndNoOther) { EXPECT_EQ(documented_keys(), recipe_keys()); }

}  // namespace
}  // namespace yoke
