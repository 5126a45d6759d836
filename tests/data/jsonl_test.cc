#include "data/jsonl.h"

#include <nlohmann/json.hpp>

#include "data_test_util.h"

namespace yoke {
namespace {

std::vector<std::string> texts(std::string_view lines, int64_t first_line = 1) {
  std::vector<std::string> found;
  for_each_text(lines, "corpus.jsonl", first_line, [&](const std::string& text) { found.push_back(text); });
  return found;
}

using Texts = std::vector<std::string>;

TEST(Jsonl, TakesTheTextOfEveryLine) {
  EXPECT_EQ(texts("{\"text\": \"one\"}\n\n  \r\n{\"id\": 3, \"text\": \"t\\u00fcr\\n\", \"meta\": {\"text\": 5}}\r\n"
                  "{\"text\": \"\"}"),
            Texts({"one", "t\xc3\xbcr\n", ""}));
  EXPECT_EQ(texts("{\"text\": \"first\", \"text\": \"last\"}"), Texts({"last"}));
  EXPECT_EQ(texts("{\"list\": [\"text\", {\"text\": \"inner\"}], \"text\": \"\\ud83d\\ude00\"}"),
            Texts({"\xf0\x9f\x98\x80"}));
  EXPECT_TRUE(texts("").empty());
}

TEST(Jsonl, AgreesWithATreeParser) {
  std::mt19937 random(5);
  std::string lines;
  Texts expected;
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (int c = static_cast<int>(random() % 60); c > 0; --c)
      text += std::vector<std::string>{
          "a", "\n", "\"", "\\", "\xe4\xb8\xad", "\t", "{", "\xf0\x9f\x98\x80", " ", "/"}[random() % 10];
    nlohmann::json object = {{"zeta", i}, {"nested", {{"text", "no"}, {"list", {1, "text", nullptr}}}}};
    object["text"] = text;
    lines += object.dump(-1, ' ', i % 2 == 0) + "\n";
    expected.push_back(text);
  }
  EXPECT_EQ(texts(lines), expected);
}

TEST(Jsonl, FaultsNameFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"text\": \"a\"", "is not JSON"},
      {"{\"text\": \"a\"} x", "is not JSON"},
      {"not json", "is not JSON"},
      {"{\"text\": \"\\ud800\"}", "is not JSON"},
      {"{\"text\": 1e999}", "is not JSON"},
      {"[{\"text\": \"a\"}]", "is not a JSON object"},
      {"\"text\"", "is not a JSON object"},
      {"{\"content\": \"a\", \"id\": 1}", "has no \"text\" field (it has content, id)"},
      {"{}", "has no \"text\" field"},
      {"{\"text\": 5}", "has a \"text\" that is not a string"},
      {"{\"text\": [\"a\"]}", "has a \"text\" that is not a string"},
      {"{\"text\": {\"text\": \"a\"}}", "has a \"text\" that is not a string"},
      {"{\"text\": \"\xff\"}", "byte 10 (0xff) is not UTF-8"},
      {std::string("{\"text\": \"a\0\"}", 14), "NUL"},
  };
  for (const auto& [line, expected] : cases) {
    const std::string message =
        error_of([&] { texts("{\"text\": \"fine\"}\n\n" + line + "\n{\"text\": \"b\"}\n", 40); });
    EXPECT_TRUE(holds(message, "corpus.jsonl:42: ")) << line;
    EXPECT_TRUE(holds(message, expected)) << line;
    EXPECT_LT(message.size(), 500u) << line;
  }
}

TEST(Jsonl, DepthIsNotOurStack) {
  const std::string deep(2'000'000, '[');
  EXPECT_TRUE(holds(error_of([&] { texts("{\"text\": " + deep); }), "corpus.jsonl:1: is not JSON"));
  const std::string closed(1'000'000, ']');
  const std::string nested = "{\"a\": " + deep.substr(0, 1'000'000) + closed + ", \"text\": \"t\"}";
  EXPECT_EQ(texts(nested), Texts({"t"}));
}

}  // namespace
}  // namespace yoke
