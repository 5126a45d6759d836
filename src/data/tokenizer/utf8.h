// UTF-8: validity, code points, and the map between bytes and the printable characters of byte-level vocabularies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace yoke {

/// `text` itself when it is UTF-8; else a copy in `storage` where every maximal ill-formed part is one U+FFFD (the
/// practice that the Unicode standard recommends, and Python's and Rust's).
std::string_view as_utf8(std::string_view text, std::string& storage);

/// Length of the valid sequence that starts at `at`, or 0; `skip` is then the length of the ill-formed part.
size_t utf8_sequence(std::string_view text, size_t at, size_t& skip);

/// Length of the sequence that a lead byte of valid UTF-8 announces.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// The code point at `at` of valid UTF-8; moves `at` behind it.
char32_t next_code_point(std::string_view text, size_t& at);
/// The code point that ends at `at` (> 0) of valid UTF-8; moves `at` in front of it.
char32_t previous_code_point(std::string_view text, size_t& at);
void append_code_point(std::string& text, char32_t code_point);

/// Unicode's White_Space.
bool is_white_space(char32_t code_point);

/// GPT-2's byte alphabet: the UTF-8 text of the printable character that stands for each byte.
const std::array<std::string, 256>& byte_alphabet();
/// The bytes that a token written in that alphabet stands for; empty when another character is in it.
std::optional<std::string> bytes_of_alphabet(std::string_view token);

}  // namespace yoke
