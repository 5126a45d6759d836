// Training a tokenizer, and what comes of it.
#include "data/tokenizer/tokenizer_trainer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/tokenizer.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;

class Trainer : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("yoke_tokenizer_trainer_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    training_.files = {write("corpus.txt", corpus())};
    training_.output = folder_ / "out";
    training_.vocabulary_size = 400;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, std::string_view content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  /// A few thousand words with a repeating vocabulary, among them a line too long for one sentence.
  static std::string corpus() {
    const std::vector<std::string> words = {"the",     "river", "mountain", "walked", "slowly", "toward",
                                            "evening", "light", "stone",    "bridge", "under",  "naïve",
                                            "字",      "2024",  "harvest",  "golden"};
    std::string text;
    uint32_t state = 1;
    for (int i = 0; i < 6000; ++i) {
      state = state * 1664525 + 1013904223;
      text += words[state >> 28] + (i > 3000 && i < 4500 ? " " : i % 11 == 0 ? ".\n" : " ");
    }
    return text;
  }

  std::string message() const {
    try {
      train_tokenizer(training_);
    } catch (const UserError& error) {
      return error.what();
    }
    ADD_FAILURE() << "was accepted";
    return "";
  }

  fs::path folder_;
  TokenizerTraining training_;
};

TEST_F(Trainer, TrainsBothKindsAndRoundTrips) {
  for (const auto kind : {TokenizerTraining::Kind::bpe, TokenizerTraining::Kind::unigram}) {
    training_.kind = kind;
    training_.vocabulary_size = kind == TokenizerTraining::Kind::bpe ? 400 : 310;
    train_tokenizer(training_);
    const auto tokenizer = load_tokenizer(training_.output);
    EXPECT_EQ(tokenizer->vocabulary_size(), training_.vocabulary_size);
    EXPECT_EQ(tokenizer->bos(), 1);
    EXPECT_EQ(tokenizer->eos(), 2);
    EXPECT_EQ(tokenizer_files(training_.output).size(), 2u);
    for (const std::string text :
         {"the river walked", "  two  spaces \n\n\ttab ", "☃ unseen 語 \r\n", "a<s>b</s>", "2024", " ", "x "}) {
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
    const auto ids = tokenizer->encode("the river</s>");
    EXPECT_EQ(ids.back(), 2);
    EXPECT_LT(ids.size(), 8u) << "nothing was merged";
    EXPECT_EQ(tokenizer->decode(ids, true), "the river");
    EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{static_cast<int32_t>(tokenizer->vocabulary_size())}),
                 UserError);
  }
}

TEST_F(Trainer, IsTheSameTwice) {
  train_tokenizer(training_);
  const std::string first = read_file(training_.output / "tokenizer.model");
  train_tokenizer(training_);
  EXPECT_EQ(read_file(training_.output / "tokenizer.model"), first);
}

TEST_F(Trainer, ImpossibleSizesNameThePossibleOnes) {
  training_.vocabulary_size = 50000;
  const std::string too_large = message();
  ASSERT_NE(too_large.find("at most "), std::string::npos) << too_large;
  training_.vocabulary_size = std::stoll(too_large.substr(too_large.find("at most ") + 8));
  train_tokenizer(training_);  // what it names is legal
  EXPECT_EQ(load_tokenizer(training_.output)->vocabulary_size(), training_.vocabulary_size);
  training_.vocabulary_size = 100;
  EXPECT_NE(message().find("260 to"), std::string::npos);
  training_.vocabulary_size = 262;
  const std::string too_small = message();
  ASSERT_NE(too_small.find("at least "), std::string::npos) << too_small;
  training_.vocabulary_size = std::stoll(too_small.substr(too_small.find("at least ") + 9));
  train_tokenizer(training_);
}

TEST_F(Trainer, BadText) {
  training_.files = {};
  EXPECT_NE(message().find("at least one file"), std::string::npos);
  training_.files = {folder_ / "gone.txt"};
  EXPECT_NE(message().find("gone.txt"), std::string::npos);
  training_.files = {write("empty.txt", "")};
  EXPECT_NE(message().find("no text"), std::string::npos);
  training_.files = {write("blank.txt", "\n\n\n")};
  EXPECT_FALSE(message().empty());
  // Bytes that are no UTF-8 and NULs among text are taken as they come.
  training_.files = {write("binary.txt", std::string("\0\xff\xfe\x80 zero\0\n", 12) + corpus())};
  train_tokenizer(training_);
}

TEST_F(Trainer, DamagedModelsAreRefusedOrHarmless) {
  train_tokenizer(training_);
  const std::string model = read_file(training_.output / "tokenizer.model");
  fs::remove(training_.output / "tokenizer_config.json");
  uint32_t state = 7;
  const auto try_it = [&](const std::string& content) {
    try {
      const auto tokenizer = load_tokenizer(write("damaged.model", content));
      tokenizer->decode(tokenizer->encode("the river <s> 字 ☃ 12"));
    } catch (const UserError&) {
    }
  };
  for (size_t length = 1; length < model.size(); length += model.size() / 150) try_it(model.substr(0, length));
  for (int i = 0; i < 600; ++i) {
    std::string damaged = model;
    for (int change = 0; change < 1 + i % 4; ++change) {
      state = state * 1664525 + 1013904223;
      damaged[state % (i % 2 == 0 ? 300 : damaged.size())] = static_cast<char>(state >> 24);
    }
    try_it(damaged);
  }
}

TEST_F(Trainer, AddedTokensBeside) {
  train_tokenizer(training_);
  const fs::path config = training_.output / "tokenizer_config.json";
  std::ofstream(config)
      << R"({"eos_token": "<|end|>", "added_tokens_decoder": {"1": {"content": "<s>", "special": true},
    "400": {"content": "<|end|>", "special": true}, "401": {"content": "<think>", "special": false}}})";
  const auto tokenizer = load_tokenizer(training_.output);
  EXPECT_EQ(tokenizer->vocabulary_size(), 402);
  EXPECT_EQ(tokenizer->eos(), 400);
  EXPECT_EQ(tokenizer->encode("<|end|><think>"), (std::vector<int32_t>{400, 401}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{400, 401}, true), "<think>");
  std::ofstream(config) << R"({"added_tokens_decoder": {"405": {"content": "<|end|>"}}})";
  EXPECT_THROW(load_tokenizer(training_.output), UserError);
  std::ofstream(config) << R"({"added_tokens_decoder": {"7": {"content": "<s>"}}})";
  EXPECT_THROW(load_tokenizer(training_.output), UserError);
}

TEST_F(Trainer, ThreadsAgree) {
  train_tokenizer(training_);
  const auto tokenizer = load_tokenizer(training_.output);
  const std::string text = corpus();
  const auto expected = load_tokenizer(training_.output)->encode(text);
  std::vector<std::vector<int32_t>> got(4);
  {
    std::vector<std::jthread> threads;
    for (auto& ids : got) threads.emplace_back([&] { ids = tokenizer->encode(text); });
  }
  for (const auto& ids : got) EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace yoke
