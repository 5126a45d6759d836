// Long texts are cut into pieces; with published vocabularies the ids must be those of the whole, wherever the cut.
#include <sstream>

#include "data/piece.h"
#include "data/text.h"
#include "data_test_util.h"

namespace yoke {
namespace {

std::string varied_text() {
  static const std::vector<std::string> words = {"the",
                                                 "a",
                                                 "<tag>",
                                                 "x=1;",
                                                 "'s",
                                                 "\xe4\xb8\xad\xe6\x96\x87",
                                                 "9",
                                                 "--",
                                                 "\xd8\xa7\xd9\x84",
                                                 "w\xc3\xb6rter",
                                                 "I'll",
                                                 "/path",
                                                 "123456",
                                                 "HELLO",
                                                 "}",
                                                 "\xf0\x9f\x98\x80",
                                                 "//",
                                                 "[x]",
                                                 "e\xcc\x81",
                                                 "\xe2\x80\x9cQ",
                                                 "!!",
                                                 "...",
                                                 "don't",
                                                 "\xe3\x80\x82"};
  static const std::vector<std::string> gaps = {" ", " ", " ",  "  ", "\t",   "\xc2\xa0", "\xe3\x80\x80",
                                                "",  "",  "\n", "\n", "\n\n", " \n",      "\n  "};
  std::mt19937 random(3);
  std::string text;
  while (text.size() < 30'000) text += words[random() % words.size()] + gaps[random() % gaps.size()];
  return text + "end";
}

/// Cuts at every place that is safe, the first to the last.
std::vector<std::string> cut_everywhere(const std::string& text) {
  std::vector<std::string> parts;
  std::string_view rest = text;
  for (size_t end = rest.find('\n') + 1; end > 0 && end < rest.size();) {
    if (last_safe_cut(rest, end) == end) {
      parts.emplace_back(rest.substr(0, end));
      rest.remove_prefix(end);
      end = 0;
    }
    end = rest.find('\n', end) + 1;
  }
  parts.emplace_back(rest);
  return parts;
}

TEST(PieceParity, PublishedTokenizersGiveTheIdsOfTheWhole) {
  const std::string text = varied_text();
  const std::vector<std::string> parts = cut_everywhere(text);
  ASSERT_GT(parts.size(), 300u);
  std::ifstream manifest(YOKE_TOKENIZER_FIXTURES "/manifest.txt");
  int tried = 0;
  for (std::string line; std::getline(manifest, line);) {
    const size_t tab = line.find('\t');
    const std::string name = line.substr(0, tab), path = line.substr(tab + 1);
    // The hand-made ones put rules together that no published tokenizer has, some of which know no safe place.
    if (name.starts_with("handmade") || name.starts_with("code-points")) continue;
    const auto tokenizer = load_tokenizer(path);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < parts.size(); ++i) {
      Piece piece;
      piece.bytes = parts[i];
      piece.continues = i > 0;
      const auto part = encode_piece(std::move(piece), name, Format::text, *tokenizer, 0).ids;
      ids.insert(ids.end(), part.begin(), part.end());
    }
    std::vector<int32_t> whole = tokenizer->encode(text);
    if (tokenizer->adds_bos()) whole.insert(whole.begin(), *tokenizer->bos());
    EXPECT_TRUE(ids == whole) << name;
    ++tried;
  }
  EXPECT_GE(tried, 10);
}

}  // namespace
}  // namespace yoke
