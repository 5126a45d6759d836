// 100,000 damaged JSONL files, all in memory and from a fixed seed. Each must give documents or end in a UserError
// (bad_file) that names file and line, with a message of bounded length; the sanitizers watch the rest.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/jsonl.h"

namespace yoke {
namespace {

const std::vector<std::string> kSeeds = {
    "{\"text\": \"one\"}\n{\"text\": \"two \\u4e2d\\u6587 \\ud83d\\ude00\"}\n",
    "{\"id\": 12, \"text\": \"line\\nline\\t\\\"quoted\\\"\", \"meta\": {\"text\": [1, 2.5e3, null, true]}}\r\n\r\n",
    "{\"text\": \"\xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80\"}\n\n  \n{\"text\": \"\"}\n{\"a\": {}, \"text\": \"x\"}",
    "{\"list\": [[[[[[\"deep\"]]]]], \"n\": -0.0, \"text\": \"end\"}",
};

const std::vector<std::string> kParts = {
    "\n",
    "\r\n",
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\\ud800",
    "\\u0000",
    "\\u12",
    "\\x",
    "\xff",
    "\xc3",
    "\xed\xa0\x80",
    "1e999",
    "-",
    "18446744073709551616",
    "null",
    "tru",
    "{\"text\":",
    "\"text\"",
    "\xef\xbb\xbf",
    "/*c*/",
    " ",
    std::string(1, '\0'),
    std::string(300, '['),
    std::string(200, '{'),
    "\"text\": 5,",
    "\xe2\x80\xa8",
};

class Mutator {
 public:
  size_t below(size_t n) { return random_() % n; }

  std::string make() {
    std::string text = kSeeds[below(kSeeds.size())];
    for (size_t changes = below(7); changes > 0; --changes) change(text);
    return text;
  }

 private:
  void change(std::string& text) {
    const size_t at = below(text.size() + 1), length = std::min(below(12), text.size() - at);
    switch (below(7)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.resize(at);
        break;
      case 4:
        text.insert(at, text.substr(at, length));
        break;
      case 5:
        text.insert(at, kParts[below(kParts.size())]);
        break;
      default:
        text.insert(at, kSeeds[below(kSeeds.size())]);
    }
  }

  std::mt19937_64 random_{20240607};
};

int fuzz() {
  constexpr int kInputs = 100'000;
  constexpr size_t kLongestMessage = 600;
  Mutator mutator;
  int whole = 0, refused = 0;
  int64_t documents = 0, bytes = 0;
  for (int i = 0; i < kInputs; ++i) {
    const std::string input = mutator.make();
    try {
      for_each_text(input, "fuzz.jsonl", 1, [&](const std::string& text) {
        ++documents;
        bytes += static_cast<int64_t>(text.size());
      });
      ++whole;
    } catch (const UserError& error) {
      ++refused;
      const std::string message = error.what();
      if (error.code() != ExitCode::bad_file || !message.starts_with("fuzz.jsonl:") ||
          message.size() > kLongestMessage) {
        std::fprintf(stderr, "input %d: a message that names no line or is too long: %s\n", i, message.c_str());
        return EXIT_FAILURE;
      }
    }
  }
  std::printf("%d inputs: %d read, %d refused; %lld documents of %lld bytes\n", kInputs, whole, refused,
              static_cast<long long>(documents), static_cast<long long>(bytes));
  // A fuzzer whose inputs all end the same way would test nothing.
  return whole > kInputs / 50 && refused > kInputs / 50 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace yoke

int main() { return yoke::fuzz(); }
