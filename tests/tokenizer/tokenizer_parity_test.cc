// Ids and decoded texts equal those of Hugging Face's `tokenizers`, of `tiktoken` and of Python's `sentencepiece`, on
// every line that tests/oracle/tokenizer_oracle.py wrote. YOKE_TOKENIZER_FIXTURES is the folder that it wrote them to.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/tokenizer/tokenizer.h"

namespace yoke {
namespace {

const std::filesystem::path kFixtures = YOKE_TOKENIZER_FIXTURES;

/// A binary file of 32-bit counts and what they count.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : content_(read_file(path)) {}

  uint32_t number() {
    uint32_t value = 0;
    take(&value, sizeof value);
    return value;
  }
  std::string text() {
    std::string value(number(), '\0');
    take(value.data(), value.size());
    return value;
  }
  std::vector<int32_t> ids() {
    std::vector<int32_t> value(number());
    take(value.data(), value.size() * sizeof(int32_t));
    return value;
  }
  bool done() const { return at_ == content_.size(); }

 private:
  void take(void* to, size_t bytes) {
    if (bytes > content_.size() - at_) throw std::runtime_error("a fixture is cut short");
    if (bytes != 0) std::memcpy(to, content_.data() + at_, bytes);
    at_ += bytes;
  }

  std::string content_;
  size_t at_ = 0;
};

struct Case {
  std::string name, tokenizer;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> read_cases() {
  std::vector<Case> cases;
  std::ifstream manifest(kFixtures / "manifest.txt");
  for (std::string line; std::getline(manifest, line);) {
    const size_t tab = line.find('\t');
    cases.push_back({line.substr(0, tab), line.substr(tab + 1)});
  }
  return cases;
}

class Parity : public testing::TestWithParam<Case> {};

std::string shown(const std::vector<int32_t>& ids) { return testing::PrintToString(ids); }

TEST_P(Parity, IdsAreEqualOnEveryLine) {
  const auto tokenizer = load_tokenizer(GetParam().tokenizer);
  Reader lines(kFixtures / (GetParam().name + ".lines")), ids(kFixtures / (GetParam().name + ".ids"));
  const uint32_t count = lines.number();
  ASSERT_GT(count, 0u);
  int wrong = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string line = lines.text();
    const auto expected = ids.ids(), got = tokenizer->encode(line);
    if (got != expected && ++wrong <= 5) {
      ADD_FAILURE() << "line " << i << ": " << testing::PrintToString(line) << "\n  expected " << shown(expected)
                    << "\n  got      " << shown(got);
    }
    for (const int32_t id : got) ASSERT_LT(id, tokenizer->vocabulary_size());
  }
  EXPECT_TRUE(lines.done() && ids.done());
  EXPECT_EQ(wrong, 0) << "of " << count << " lines";
}

TEST_P(Parity, DecodedTextsAreEqual) {
  const auto tokenizer = load_tokenizer(GetParam().tokenizer);
  int compared = 0;
  for (const bool skip_special : {false, true}) {
    const auto path = kFixtures / (GetParam().name + (skip_special ? ".skipped" : ".decoded"));
    if (!std::filesystem::exists(path)) continue;
    Reader ids(kFixtures / (GetParam().name + ".ids")), texts(path);
    int wrong = 0;
    while (!texts.done()) {
      const auto row = ids.ids();
      const std::string expected = texts.text(), got = tokenizer->decode(row, skip_special);
      ++compared;
      if (got != expected && ++wrong <= 5) {
        ADD_FAILURE() << shown(row) << "\n  expected " << testing::PrintToString(expected) << "\n  got      "
                      << testing::PrintToString(got);
      }
    }
    EXPECT_EQ(wrong, 0);
  }
  if (compared == 0) GTEST_SKIP() << "the oracle has no decoded texts for this case";
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Parity, testing::ValuesIn(read_cases()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Parity);

// Without fixtures nothing above runs; that must not look like success.
TEST(Fixtures, AreThere) {
  const auto cases = read_cases();
  ASSERT_GT(cases.size(), 50u) << "no fixtures in " << kFixtures
                               << "; `tests/oracle/tokenizer_oracle.py FOLDER` writes them (ctest runs it by itself)";
  for (const char* name : {"llama3", "llama3.2", "llama3-ranks", "qwen2", "deepseek", "gpt2", "smollm2",
                           "tekken_240911", "tokenizer.model.v1"}) {
    Reader lines(kFixtures / (std::string(name) + ".lines"));
    EXPECT_GE(lines.number(), 10000u) << name;
  }
}

}  // namespace
}  // namespace yoke
