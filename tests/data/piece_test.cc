#include "data/piece.h"

#include "data/text.h"
#include "data_test_util.h"

namespace yoke {
namespace {

class Pieces : public DataTest {
 protected:
  std::vector<Piece> read(const std::vector<std::filesystem::path>& files, Format format = Format::text,
                          int64_t* empty_files = nullptr) const {
    PieceReader reader(files, format, PairTokenizer::kEos);
    std::vector<Piece> pieces;
    for (Piece piece; reader.next(piece);) pieces.push_back(piece);
    if (empty_files != nullptr) *empty_files = reader.empty_files();
    return pieces;
  }
  std::vector<int32_t> encode(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                              Format format = Format::text) const {
    std::vector<int32_t> ids;
    for (Piece& piece : read(files, format)) {
      const std::string name = files[piece.file].string();
      const auto part = encode_piece(std::move(piece), name, format, tokenizer, PairTokenizer::kEos).ids;
      ids.insert(ids.end(), part.begin(), part.end());
    }
    return ids;
  }
};

/// Lines of words with every sort of white space between them that tokenizers treat apart.
std::string random_text(size_t bytes, uint32_t seed) {
  static const std::vector<std::string> words = {
      "the", "a",  "<tag>",    "x=1;",          "'s",    "\xe4\xb8\xad\xe6\x96\x87",
      "9",   "--", "\xd8\xa7", "w\xc3\xb6rter", "/path", "\xe2\x80\x9cQ"};
  static const std::vector<std::string> gaps = {" ", " ", " ", "  ", "\t", "\xc2\xa0", "\xe3\x80\x80"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    text += words[random() % words.size()];
    const uint32_t gap = random() % 20;
    if (gap < 14) {
      text += gaps[gap % gaps.size()];
    } else {
      if (gap == 14) text += " ";
      for (uint32_t n = gap < 18 ? 1 : 2 + random() % 2; n > 0; --n) text += "\n";
      if (gap == 15) text += "  ";
    }
  }
  return text;
}

TEST_F(Pieces, ALongTextIsCutWithoutChangingItsIds) {
  for (const bool prefix : {false, true}) {
    for (const uint32_t seed : {1u, 2u, 3u}) {
      const std::string text = random_text(5 * kPieceBytes + 12345, seed);
      const auto file = put("long.txt", text);
      const PairTokenizer tokenizer(prefix);
      std::vector<int32_t> whole = tokenizer.encode(text);
      whole.push_back(PairTokenizer::kEos);
      const std::vector<Piece> pieces = read({file});
      ASSERT_GE(pieces.size(), 5u);
      std::string joined;
      for (const Piece& piece : pieces) {
        EXPECT_EQ(piece.offset, joined.size());
        EXPECT_EQ(piece.continues, !joined.empty());
        EXPECT_LE(piece.bytes.size(), kPieceBytes);
        joined += piece.bytes;
        EXPECT_EQ(piece.ends_file, joined.size() == text.size());
      }
      EXPECT_TRUE(joined == text);
      EXPECT_TRUE(encode({file}, tokenizer) == whole) << "prefix " << prefix << " seed " << seed;
    }
  }
}

TEST_F(Pieces, DocumentsBeginWithTheTokenThatTheTokenizerAdds) {
  const PairTokenizer plain, tokenizer(false, "pairs", true);
  const std::string text = random_text(2 * kPieceBytes, 4);
  const auto files = {put("empty.txt", ""), put("long.txt", text), put("short.txt", "one")};
  std::vector<int32_t> expected;
  for (const std::string& document : {text, std::string("one")}) {
    expected.push_back(PairTokenizer::kBos);
    const auto ids = plain.encode(document);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(PairTokenizer::kEos);
  }
  EXPECT_TRUE(encode(files, tokenizer) == expected);

  std::vector<int32_t> lines;
  for (const char* document : {"one", "two"}) {
    lines.push_back(PairTokenizer::kBos);
    const auto ids = plain.encode(document);
    lines.insert(lines.end(), ids.begin(), ids.end());
    lines.push_back(PairTokenizer::kEos);
  }
  const auto jsonl = put("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\"}\n{\"text\": \"two\"}\n");
  EXPECT_EQ(encode({jsonl}, tokenizer, Format::jsonl), lines);
}

TEST_F(Pieces, CrLfGivesTheIdsOfLf) {
  const std::string text = random_text(3 * kPieceBytes, 7);
  std::string dos;
  for (const char c : text) dos += c == '\n' ? "\r\n" : std::string(1, c);
  const auto unix_file = put("unix.txt", text), dos_file = put("dos.txt", dos);
  const PairTokenizer tokenizer;
  // The two are cut at different places, which must not show.
  EXPECT_TRUE(encode({unix_file}, tokenizer) == encode({dos_file}, tokenizer));
  std::string lone = "a\rb\r\r\nc\r";
  EXPECT_EQ(normalise_newlines(lone), 1);
  EXPECT_EQ(lone, "a\rb\r\nc\r");
}

TEST_F(Pieces, WhereATextMayBeCut) {
  EXPECT_EQ(last_safe_cut("abc\ndef\nghi", 10), 8u);
  EXPECT_EQ(last_safe_cut("abc\ndef\nghi", 7), 4u);
  EXPECT_EQ(last_safe_cut("abc\r\ndef", 7), 5u);
  EXPECT_EQ(last_safe_cut("\xe4\xb8\xad\n\xe6\x96\x87", 4), 4u);
  for (const char* unsafe : {"abc\n\ndef", "abc \ndef", "abc\n def", "abc\t\r\ndef", "abc\n/def", "abc\n<def", "\nabc",
                             "abc\n\xc2\xa0x", "abc\xe3\x80\x80\ndef", "abcdef"})
    EXPECT_EQ(last_safe_cut(unsafe, std::string_view(unsafe).size() - 1), 0u) << unsafe;
}

TEST_F(Pieces, ATextWithoutLinesIsCutAtACharacter) {
  std::string text;
  while (text.size() < kMaxPieceBytes + kPieceBytes) text += "\xe4\xb8\xad";
  const auto file = put("one_line.txt", text);
  const std::vector<Piece> pieces = read({file});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].bytes.size() % 3, 0u);
  EXPECT_EQ(pieces[0].bytes.size() + pieces[1].bytes.size(), text.size());
  EXPECT_EQ(encode({file}, ByteIds()).size(), text.size() + 1);
  EXPECT_EQ(last_character_cut("ab\r\ncd", 3), 2u);
}

TEST_F(Pieces, ByteOrderMarkAndEmptyFilesAreLeftOut) {
  const std::vector<std::filesystem::path> files = {
      put("0.txt", ""), put("1.txt", "\xef\xbb\xbf"), put("2.txt", "\xef\xbb\xbfone"),
      put("3.txt", ""), put("4.txt", "two"),          put("5.txt", "")};
  int64_t empty = 0;
  const std::vector<Piece> pieces = read(files, Format::text, &empty);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(empty, 4);
  EXPECT_EQ(pieces[0].bytes, "one");
  EXPECT_EQ(pieces[0].offset, 3u);
  EXPECT_EQ(pieces[1].bytes, "two");
  EXPECT_EQ(pieces[1].file, 4u);
}

TEST_F(Pieces, BinaryAndForeignTextNameFileAndByte) {
  const std::string good = random_text(2 * kPieceBytes, 9);
  const ByteIds tokenizer;
  const auto message_of = [&](const std::string& content) {
    const auto file = put("bad.txt", content);
    const std::string message = error_of([&] { encode({file}, tokenizer); });
    EXPECT_TRUE(holds(message, file.string() + ": "));
    return message;
  };
  EXPECT_TRUE(holds(message_of(good + "\nCaf\xe9 au lait"), "byte " + std::to_string(good.size() + 4) + " (0xe9)"));
  EXPECT_TRUE(holds(message_of(good + std::string("x\0y", 3)), "byte " + std::to_string(good.size() + 1) + " is NUL"));
  EXPECT_TRUE(holds(message_of("\xef\xbb\xbf"
                               "ab\xff"),
                    "byte 5 (0xff)"));
  EXPECT_TRUE(holds(message_of("\xff\xfeh\0i\0"), "byte 0 (0xff)"));
  EXPECT_TRUE(holds(message_of("ok \xc3"), "byte 3 (0xc3)")) << "cut off in a character";
  EXPECT_TRUE(holds(message_of("\xc0\xaf"), "byte 0 (0xc0)")) << "overlong";
  EXPECT_TRUE(holds(message_of("12345678\xed\xa0\x80"), "byte 8 (0xed)")) << "a surrogate";
  EXPECT_TRUE(holds(message_of("\xf4\x90\x80\x80"), "byte 0 (0xf4)")) << "beyond U+10FFFF";
  EXPECT_NO_THROW(check_utf8("\x01\x7f\xc2\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "f", 0));
}

TEST_F(Pieces, JsonlIsReadInWholeLinesWithTheirNumbers) {
  std::string lines;
  int64_t count = 0;
  for (; lines.size() < 3 * kPieceBytes; ++count) lines += "{\"text\": \"document " + std::to_string(count) + "\"}\n";
  const auto file = put("a.jsonl", "\xef\xbb\xbf" + lines + "broken");
  int64_t line = 1;
  for (const Piece& piece : read({file}, Format::jsonl)) {
    EXPECT_EQ(piece.line, line);
    line += std::count(piece.bytes.begin(), piece.bytes.end(), '\n');
  }
  const std::string message = error_of([&] { encode({file}, ByteIds(), Format::jsonl); });
  EXPECT_TRUE(holds(message, file.string() + ":" + std::to_string(count + 1) + ": is not JSON"));

  const auto long_line = put("long.jsonl", "{}\n{\"text\": \"" + std::string(kMaxPieceBytes, 'x') + "\"}\n");
  const std::string too_long = error_of([&] { read({long_line}, Format::jsonl); });
  EXPECT_TRUE(holds(too_long, long_line.string() + ":2: the line is longer than 64 MiB"));
}

TEST_F(Pieces, EveryDocumentEndsOnce) {
  const PairTokenizer tokenizer;
  const auto count_ends = [](const std::vector<int32_t>& ids) { return std::count(ids.begin(), ids.end(), 1); };
  EXPECT_EQ(count_ends(encode({put("a.txt", "one<|end|>")}, tokenizer)), 1);
  EXPECT_EQ(count_ends(encode({put("a.txt", "one<|end|>two")}, tokenizer)), 2);
  EXPECT_EQ(count_ends(encode({put("a.txt", "one"), put("b.txt", "two")}, tokenizer)), 2);
  EXPECT_EQ(count_ends(encode({put("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b<|end|>\"}\n{\"text\": \"\"}")},
                              tokenizer, Format::jsonl)),
            2);
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string tokens_header(uint32_t version, uint32_t token_bytes, uint64_t count, uint32_t eos) {
  return std::string("yoketok\0", 8) + bytes_of<uint32_t>({version, token_bytes}) + bytes_of<uint64_t>({count}) +
         bytes_of<uint32_t>({eos, 0});
}

TEST_F(Pieces, TokenFilesOfTwoAndFourBytes) {
  std::mt19937 random(4);
  std::vector<int32_t> ids(700'000);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 4003);
  ids.back() = 1;
  const std::vector<uint16_t> small(ids.begin(), ids.end());
  const std::vector<uint32_t> large(ids.begin(), ids.end());
  const PairTokenizer tokenizer;
  const auto two = put("two.tokens", tokens_header(1, 2, ids.size(), 1) + bytes_of(small));
  EXPECT_TRUE(encode({two}, tokenizer, Format::tokens) == ids);
  const auto four = put("four.tokens", tokens_header(1, 4, ids.size(), 0xffffffffu) + bytes_of(large));
  EXPECT_TRUE(encode({four}, tokenizer, Format::tokens) == ids);

  std::vector<uint32_t> llmc(256);
  llmc[0] = 20240520;
  llmc[1] = 1;
  llmc[2] = static_cast<uint32_t>(ids.size());
  EXPECT_TRUE(encode({put("gpt2.bin", bytes_of(llmc) + bytes_of(small))}, tokenizer, Format::tokens) == ids);
  llmc[0] = 20240801;
  llmc[1] = 7;
  EXPECT_TRUE(encode({put("llama3.bin", bytes_of(llmc) + bytes_of(large))}, tokenizer, Format::tokens) == ids);
  llmc[1] = 3;
  EXPECT_TRUE(holds(error_of([&] { encode({put("x.bin", bytes_of(llmc))}, tokenizer, Format::tokens); }), "version 3"));

  int64_t empty = 0;
  EXPECT_TRUE(read({put("e.tokens", tokens_header(1, 2, 0, 1)), put("f.tokens", "")}, Format::tokens, &empty).empty());
  EXPECT_EQ(empty, 2);
}

TEST_F(Pieces, FaultyTokenFilesSayWhatIsWrong) {
  const std::string body = bytes_of<uint16_t>({5, 6, 1});
  const PairTokenizer tokenizer;
  const auto message = [&](const std::string& content) {
    return error_of([&] { encode({put("bad.tokens", content)}, tokenizer, Format::tokens); });
  };
  EXPECT_TRUE(holds(message("plain text"), "is not a token file"));
  EXPECT_TRUE(holds(message(tokens_header(2, 2, 3, 1) + body), "version 2"));
  EXPECT_TRUE(holds(message(tokens_header(1, 3, 3, 1) + body), "3 bytes a token"));
  EXPECT_TRUE(holds(message(tokens_header(1, 2, 4, 1) + body), "cut off or damaged"));
  EXPECT_TRUE(holds(message(tokens_header(1, 2, (uint64_t{1} << 63) + 3, 1) + body), "cut off or damaged"));
  EXPECT_TRUE(holds(message(tokens_header(1, 2, 3, 1) + body + "x"), "cut off or damaged"));
  EXPECT_TRUE(holds(message(tokens_header(1, 2, 3, 9) + body), "end with id 9"));
  EXPECT_TRUE(
      holds(message(tokens_header(1, 2, 2, 1) + bytes_of<uint16_t>({5, 4003})), "the token at byte 34 is 4003"));
  EXPECT_TRUE(holds(message(tokens_header(1, 4, 1, 1) + bytes_of<uint32_t>({0xffffffffu})), "byte 32 is 4294967295"));
}

}  // namespace
}  // namespace yoke
