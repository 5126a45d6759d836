#include "data/tokenizer/utf8.h"

#include <cstring>

namespace yoke {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// Bounds of the second byte: they exclude overlong forms, surrogates and what lies above U+10FFFF.
struct SecondByte {
  uint8_t low, high;
};

SecondByte second_byte(uint8_t lead) {
  switch (lead) {
    case 0xe0:
      return {0xa0, 0xbf};
    case 0xed:
      return {0x80, 0x9f};
    case 0xf0:
      return {0x90, 0xbf};
    case 0xf4:
      return {0x80, 0x8f};
    default:
      return {0x80, 0xbf};
  }
}

bool has_high_bit(std::string_view text, size_t at) {
  uint64_t word;
  std::memcpy(&word, text.data() + at, sizeof word);
  return (word & 0x8080808080808080u) != 0;
}

}  // namespace

size_t utf8_sequence(std::string_view text, size_t at, size_t& skip) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  skip = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t length = utf8_length(text[at]);
  const SecondByte second = second_byte(lead);
  for (size_t i = 1; i < length; ++i) {
    const uint8_t low = i == 1 ? second.low : 0x80, high = i == 1 ? second.high : 0xbf;
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) {
      skip = i;
      return 0;
    }
  }
  return length;
}

std::string_view as_utf8(std::string_view text, std::string& storage) {
  size_t at = 0, kept = 0, skip = 0;
  bool copied = false;
  while (at < text.size()) {
    if (at + 8 <= text.size() && !has_high_bit(text, at)) {
      at += 8;
      continue;
    }
    const size_t length = utf8_sequence(text, at, skip);
    if (length != 0) {
      at += length;
      continue;
    }
    if (!copied) storage.clear();
    copied = true;
    storage.append(text.substr(kept, at - kept)).append(kReplacement);
    at += skip;
    kept = at;
  }
  if (!copied) return text;
  storage.append(text.substr(kept));
  return storage;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  const size_t length = utf8_length(text[at]);
  if (length == 1) return static_cast<unsigned char>(text[at++]);
  char32_t code_point = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) code_point = code_point << 6 | (static_cast<uint8_t>(text[at + i]) & 0x3fu);
  at += length;
  return code_point;
}

char32_t previous_code_point(std::string_view text, size_t& at) {
  do {
    --at;
  } while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80);
  size_t start = at;
  return next_code_point(text, start);
}

void append_code_point(std::string& text, char32_t c) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// Printable Latin-1 bytes stand for themselves; the others, in order, for U+0100 onwards.
const std::array<std::string, 256>& byte_alphabet() {
  static const auto alphabet = [] {
    std::array<std::string, 256> table;
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      append_code_point(table[byte], printable ? byte : next++);
    }
    return table;
  }();
  return alphabet;
}

std::optional<std::string> bytes_of_alphabet(std::string_view token) {
  static const auto inverse = [] {
    std::array<int16_t, 0x200> table;
    table.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      size_t at = 0;
      table[next_code_point(byte_alphabet()[static_cast<size_t>(byte)], at)] = static_cast<int16_t>(byte);
    }
    return table;
  }();
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const char32_t c = next_code_point(token, at);
    if (c >= inverse.size() || inverse[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(inverse[c]));
  }
  return bytes;
}

}  // namespace yoke
