#include "data/tokenizer/sentencepiece_check.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"

namespace yoke {

namespace {

/// The character that stands for a space in pieces.
constexpr std::string_view kSpace = "\xe2\x96\x81";

/// A field of a serialized protocol buffer: `value` of a number, `bytes` of everything else.
struct Field {
  uint64_t number = 0;
  std::string_view bytes;
  uint64_t value = 0;
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
    case 0: {
      const auto value = take_varint(text);
      field.value = value.value_or(0);
      return value ? std::optional(field) : std::nullopt;
    }
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

/// What decides whether words are independent of each other; the defaults are the format's.
struct Traits {
  bool local_model = true, plain = true, dummy_prefix = true, keeps_spaces = false, escapes_spaces = true;
  bool space_is_suffix = false, knows_space = false, space_inside_piece = false;

  bool words_are_independent() const {
    return local_model && plain && dummy_prefix && keeps_spaces && escapes_spaces && !space_is_suffix && knows_space &&
           !space_inside_piece;
  }
};

/// Reads a NormalizerSpec; false when it is malformed or its table isn't sound.
bool read_normalizer(std::string_view spec, Traits& traits) {
  constexpr uint64_t kCharsmap = 2, kDummyPrefix = 3, kRemoveExtraSpaces = 4, kEscapeSpaces = 5;
  while (!spec.empty()) {
    const auto field = take_field(spec);
    if (!field || (field->number == kCharsmap && !charsmap_is_sound(field->bytes))) return false;
    if (field->number == kCharsmap) traits.plain = field->bytes.empty();
    if (field->number == kDummyPrefix) traits.dummy_prefix = field->value != 0;
    if (field->number == kRemoveExtraSpaces) traits.keeps_spaces = field->value == 0;
    if (field->number == kEscapeSpaces) traits.escapes_spaces = field->value != 0;
  }
  return true;
}

bool read_trainer(std::string_view spec, Traits& traits) {
  constexpr uint64_t kModelType = 3, kSpaceIsSuffix = 24, kUnigram = 1, kBpe = 2;
  while (!spec.empty()) {
    const auto field = take_field(spec);
    if (!field) return false;
    if (field->number == kModelType) traits.local_model = field->value == kUnigram || field->value == kBpe;
    if (field->number == kSpaceIsSuffix) traits.space_is_suffix = field->value != 0;
  }
  return true;
}

bool read_piece(std::string_view spec, Traits& traits) {
  constexpr uint64_t kText = 1;
  while (!spec.empty()) {
    const auto field = take_field(spec);
    if (!field) return false;
    if (field->number != kText) continue;
    std::string_view text = field->bytes;
    traits.knows_space |= text == kSpace;
    while (text.starts_with(kSpace)) text.remove_prefix(kSpace.size());
    traits.space_inside_piece |= text.find(kSpace) != text.npos;
  }
  return true;
}

}  // namespace

bool check_sentencepiece_model(std::string_view content, const std::filesystem::path& path) {
  constexpr uint64_t kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;
  size_t pieces = 0;
  Traits traits, ignored;
  while (!content.empty()) {
    const auto field = take_field(content);
    bool sound = field.has_value() && field->number != 0;
    if (sound && field->number == kPieces) sound = read_piece(field->bytes, traits);
    if (sound && field->number == kTrainer) sound = read_trainer(field->bytes, traits);
    if (!sound) {
      fail_file(
          "{}: is no tokenizer of a known kind, or is cut short: neither JSON nor tiktoken ranks nor a whole "
          "SentencePiece model.",
          path.string());
    }
    pieces += field->number == kPieces;
    if ((field->number == kNormalizer && !read_normalizer(field->bytes, traits)) ||
        (field->number == kDenormalizer && !read_normalizer(field->bytes, ignored))) {
      fail_file("{}: the normalisation table of this SentencePiece model is damaged.", path.string());
    }
  }
  if (pieces == 0) fail_file("{}: is no SentencePiece model: it has no pieces.", path.string());
  return traits.words_are_independent();
}

}  // namespace yoke
