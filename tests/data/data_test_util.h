// What the data layer's tests share: a folder of their own, tokenizers with known behaviour, random corpora.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/dataset.h"
#include "data/token_store.h"
#include "data/tokenizer/tokenizer.h"

namespace yoke {

/// A fresh folder that goes away with the test.
class DataTest : public ::testing::Test {
 protected:
  DataTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("yoke_data_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~DataTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path put(const std::string& name, std::string_view content) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  std::filesystem::path folder_;
};

/// The message of the UserError that `action` throws; fails the test when it throws none.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

inline ::testing::AssertionResult holds(const std::string& text, std::string_view part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' does not hold '" << part << "'";
}

/// Splits as GPT-2 does (white space before a word stays apart but for its last blank; a run at the end of the text is
/// one word), then makes ids of pairs of bytes, so that ids change when the split does. `<|end|>` is the
/// end-of-sequence token. `prefix` puts an id before every text, as SentencePiece's dummy prefix does; `bos` lets
/// documents begin with a token of its own.
class PairTokenizer : public Tokenizer {
 public:
  explicit PairTokenizer(bool prefix = false, std::string name = "pairs", bool bos = false)
      : prefix_(prefix), bos_(bos), name_(std::move(name)) {}
  static constexpr int32_t kBos = 0;
  static constexpr int32_t kEos = 1;
  static constexpr int32_t kPrefix = 2;

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    if (prefix_ && !text.empty()) ids.push_back(kPrefix);
    constexpr std::string_view kEnd = "<|end|>";
    while (!text.empty()) {
      const std::string_view before = text.substr(0, text.find(kEnd));
      add_words(before, ids);
      text.remove_prefix(before.size());
      if (text.empty()) break;
      ids.push_back(kEos);
      text.remove_prefix(kEnd.size());
    }
    return ids;
  }
  std::string decode(std::span<const int32_t>, bool) const override { return ""; }
  int64_t vocabulary_size() const override { return 4003; }
  std::optional<int32_t> bos() const override { return kBos; }
  std::optional<int32_t> eos() const override { return kEos; }
  bool adds_bos() const override { return bos_; }
  std::optional<int32_t> id_of(std::string_view) const override { return {}; }
  std::string fingerprint() const override { return name_; }

 private:
  static void add_words(std::string_view text, std::vector<int32_t>& ids) {
    while (!text.empty()) {
      const size_t length = word_length(text);
      for (size_t i = 0; i < length; i += 2) {
        const auto a = static_cast<uint8_t>(text[i]);
        const auto b = i + 1 < length ? static_cast<uint8_t>(text[i + 1]) : 0;
        ids.push_back(3 + (a * 31 + b * 17) % 4000);
      }
      text.remove_prefix(length);
    }
  }
  static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
  static size_t word_length(std::string_view text) {
    size_t spaces = 0;
    while (spaces < text.size() && is_space(text[spaces])) ++spaces;
    if (spaces == text.size()) return spaces;
    if (spaces > 1) return spaces - 1;
    if (spaces == 1 && text[0] != ' ') return 1;
    size_t end = spaces;
    while (end < text.size() && !is_space(text[end])) ++end;
    return end;
  }

  bool prefix_, bos_;
  std::string name_;
};

/// A byte is its own id; 256 ends a document.
class ByteIds : public Tokenizer {
 public:
  explicit ByteIds(std::optional<int32_t> eos = 256) : eos_(eos) {}
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<uint8_t>(text[i]);
    return ids;
  }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += id < 256 ? std::string(1, static_cast<char>(id)) : "<|end|>";
    return text;
  }
  int64_t vocabulary_size() const override { return 257; }
  std::optional<int32_t> bos() const override { return {}; }
  std::optional<int32_t> eos() const override { return eos_; }
  bool adds_bos() const override { return false; }
  std::optional<int32_t> id_of(std::string_view) const override { return {}; }
  std::string fingerprint() const override { return "byte ids"; }

 private:
  std::optional<int32_t> eos_;
};

/// Random ids in [2, vocabulary); eos (1) is not among them.
inline std::vector<std::vector<int32_t>> random_documents(std::mt19937& random, int count, int longest,
                                                          int vocabulary = 1000) {
  std::vector<std::vector<int32_t>> documents(count);
  for (auto& document : documents) {
    document.resize(1 + random() % longest);
    for (int32_t& id : document) id = static_cast<int32_t>(2 + random() % (vocabulary - 2));
  }
  return documents;
}

inline std::shared_ptr<const TokenStore> store_of(const std::filesystem::path& base,
                                                  const std::vector<std::vector<int32_t>>& documents,
                                                  int64_t vocabulary = 1000) {
  TokenStoreWriter writer(base, vocabulary, 1);
  for (const auto& document : documents) {
    writer.append(document);
    writer.append(std::vector<int32_t>{1});
  }
  writer.commit({});
  return std::make_shared<const TokenStore>(base);
}

inline Batch empty_batch(int64_t rows, int64_t length) { return padding_batch(rows, length, 0); }

}  // namespace yoke
