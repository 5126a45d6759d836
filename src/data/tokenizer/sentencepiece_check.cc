#include "data/tokenizer/sentencepiece_check.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"

namespace yoke {

namespace {

/// A field of a serialized protocol buffer; `bytes` only where it is length-delimited.
struct Field {
  uint64_t number = 0;
  std::string_view bytes;
};

std::optional<uint64_t> take_varint(std::string_view& text) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !text.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(text.front());
    text.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

/// The next field, or nothing when the rest is malformed.
std::optional<Field> take_field(std::string_view& text) {
  const auto key = take_varint(text);
  if (!key) return std::nullopt;
  Field field{*key >> 3, {}};
  uint64_t length = 0;
  switch (*key & 7) {
    case 0:
      return take_varint(text) ? std::optional(field) : std::nullopt;
    case 1:
      length = 8;
      break;
    case 2: {
      const auto announced = take_varint(text);
      if (!announced) return std::nullopt;
      length = *announced;
      break;
    }
    case 5:
      length = 4;
      break;
    default:
      return std::nullopt;
  }
  if (length > text.size()) return std::nullopt;
  field.bytes = text.substr(0, length);
  text.remove_prefix(length);
  return field;
}

/// One cell of the double-array trie (Darts) that maps character sequences to replacements.
class Unit {
 public:
  explicit Unit(uint32_t bits) : bits_(bits) {}
  bool has_leaf() const { return (bits_ >> 8 & 1) != 0; }
  uint32_t value() const { return bits_ & 0x7fffffffu; }
  uint32_t label() const { return bits_ & 0x800000ffu; }
  uint32_t offset() const { return (bits_ >> 10) << ((bits_ & 0x200u) >> 6); }

 private:
  uint32_t bits_;
};

/// Walks through every cell that some text reaches: none may lie outside, nor any replacement.
bool trie_is_closed(std::string_view trie, std::string_view replacements) {
  const size_t cells = trie.size() / sizeof(uint32_t);
  const auto unit = [&](size_t at) {
    uint32_t bits;
    std::memcpy(&bits, trie.data() + at * sizeof bits, sizeof bits);
    return Unit(bits);
  };
  std::vector<bool> seen(cells);
  std::vector<size_t> todo = {0};
  while (!todo.empty()) {
    const size_t node = todo.back();
    todo.pop_back();
    const Unit here = unit(node);
    const size_t base = node ^ here.offset();
    if (base >= cells) return false;
    if (here.has_leaf() && unit(base).value() >= replacements.size()) return false;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const size_t child = base ^ byte;
      if (child >= cells) return false;
      if (unit(child).label() != byte || seen[child]) continue;
      seen[child] = true;
      todo.push_back(child);
    }
  }
  return true;
}

bool charsmap_is_sound(std::string_view charsmap) {
  constexpr size_t kMaxTrieBytes = size_t{4} << 20;
  if (charsmap.empty()) return true;
  uint32_t trie_bytes = 0;
  if (charsmap.size() < sizeof trie_bytes) return false;
  std::memcpy(&trie_bytes, charsmap.data(), sizeof trie_bytes);
  charsmap.remove_prefix(sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes > charsmap.size() || trie_bytes % 4 != 0 || trie_bytes > kMaxTrieBytes)
    return false;
  const std::string_view replacements = charsmap.substr(trie_bytes);
  if (replacements.empty() || replacements.back() != '\0') return false;
  return trie_is_closed(charsmap.substr(0, trie_bytes), replacements);
}

bool normalizer_is_sound(std::string_view spec) {
  constexpr uint64_t kPrecompiledCharsmap = 2;
  while (!spec.empty()) {
    const auto field = take_field(spec);
    if (!field || (field->number == kPrecompiledCharsmap && !charsmap_is_sound(field->bytes))) return false;
  }
  return true;
}

}  // namespace

void check_sentencepiece_model(std::string_view content, const std::filesystem::path& path) {
  constexpr uint64_t kPieces = 1, kNormalizer = 3, kDenormalizer = 5;
  size_t pieces = 0;
  while (!content.empty()) {
    const auto field = take_field(content);
    if (!field || field->number == 0) {
      fail_file(
          "{}: is no tokenizer of a known kind, or is cut short: neither JSON nor tiktoken ranks nor a whole "
          "SentencePiece model.",
          path.string());
    }
    pieces += field->number == kPieces;
    if ((field->number == kNormalizer || field->number == kDenormalizer) && !normalizer_is_sound(field->bytes)) {
      fail_file("{}: the normalisation table of this SentencePiece model is damaged.", path.string());
    }
  }
  if (pieces == 0) fail_file("{}: is no SentencePiece model: it has no pieces.", path.string());
}

}  // namespace yoke
