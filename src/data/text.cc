#include "data/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace yoke {

namespace {

/// Number of leading bytes in 1..0x7f, eight at a time.
size_t ascii_prefix(std::string_view s) {
  size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, s.data() + i, 8);
    const uint64_t zero_bytes = (word - 0x0101010101010101u) & ~word & 0x8080808080808080u;
    if ((word & 0x8080808080808080u) != 0 || zero_bytes != 0) break;
  }
  while (i < s.size() && static_cast<signed char>(s[i]) > 0) ++i;
  return i;
}

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xc0u) == 0x80u; }

/// The code point that starts at `at`, or -1.
utf8proc_int32_t character_at(std::string_view text, size_t at) {
  utf8proc_int32_t code = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  return code;
}

bool is_space(utf8proc_int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
      return true;
    default:
      return false;
  }
}

bool starts_word(std::string_view text, size_t at) {
  const auto c = static_cast<unsigned char>(text[at]);
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  const utf8proc_int32_t code = character_at(text, at);
  return code >= 0 && !is_space(code);
}

/// True when the character that ends before `end` isn't white space.
bool ends_word(std::string_view text, size_t end) {
  if (end == 0) return false;
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && is_continuation(text[begin])) --begin;
  const utf8proc_int32_t code = character_at(text.substr(0, end), begin);
  return code >= 0 && !is_space(code);
}

}  // namespace

void check_utf8(std::string_view bytes, const std::string& file, uint64_t offset) {
  size_t i = 0;
  while (i < bytes.size()) {
    i += ascii_prefix(bytes.substr(i));
    if (i == bytes.size()) return;
    if (bytes[i] == '\0')
      fail_file("{}: byte {} is NUL, so this is a binary file; text must be UTF-8. Leave it out.", file, offset + i);
    utf8proc_int32_t code = 0;
    const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()) + i,
                                    static_cast<utf8proc_ssize_t>(bytes.size() - i), &code);
    if (n <= 0)
      fail_file("{}: byte {} (0x{:02x}) is not UTF-8. Convert the file, for example with iconv, or leave it out.", file,
                offset + i, static_cast<uint8_t>(bytes[i]));
    i += static_cast<size_t>(n);
  }
}

int64_t normalise_newlines(std::string& text) {
  size_t from = text.find("\r\n");
  if (from == std::string::npos) return 0;
  int64_t replaced = 0;
  size_t to = from;
  for (; from < text.size(); ++from) {
    if (text[from] == '\r' && from + 1 < text.size() && text[from + 1] == '\n') {
      ++replaced;
      continue;
    }
    text[to++] = text[from];
  }
  text.resize(to);
  return replaced;
}

size_t last_safe_cut(std::string_view text, size_t limit) {
  for (size_t cut = limit; cut > 0;) {
    const size_t newline = text.rfind('\n', cut - 1);
    if (newline == std::string_view::npos) return 0;
    const size_t before = newline > 0 && text[newline - 1] == '\r' ? newline - 1 : newline;
    if (starts_word(text, newline + 1) && ends_word(text, before)) return newline + 1;
    cut = newline;
  }
  return 0;
}

size_t last_character_cut(std::string_view text, size_t limit) {
  size_t cut = limit;
  while (cut > 1 && limit - cut < 3 && is_continuation(text[cut])) --cut;
  if (cut > 1 && text[cut] == '\n' && text[cut - 1] == '\r') --cut;
  return cut;
}

}  // namespace yoke
