#include "data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

struct Range {
  char32_t first, last;
};

/// Characters younger than Unicode 9 that have a combining class or a decomposition. Hugging Face's library normalises
/// by the tables of Unicode 9, where they have neither, and the ids of a published vocabulary depend on that.
constexpr auto kYoung = std::to_array<Range>(
    {{0x558, 0x558},     {0x58b, 0x58c},     {0x5c8, 0x5c9},     {0x7fd, 0x7fd},     {0x897, 0x89f},
     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},
     {0x1715, 0x1715},   {0x1abf, 0x1af0},   {0x1df6, 0x1dfa},   {0x209d, 0x209f},   {0x32ff, 0x32ff},
     {0xa7f1, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x105c9, 0x105c9}, {0x105e4, 0x105e4},
     {0x10781, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107bf}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d},
     {0x10eab, 0x10eac}, {0x10ecb, 0x10ecf}, {0x10ef0, 0x10efb}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
     {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11383, 0x11383}, {0x11385, 0x11385},
     {0x1138e, 0x1138e}, {0x11391, 0x11391}, {0x113c5, 0x113c5}, {0x113c7, 0x113c8}, {0x113ce, 0x113d0},
     {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
     {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
     {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16121, 0x16128}, {0x1612f, 0x1612f},
     {0x16d68, 0x16d6a}, {0x16ff0, 0x16ff1}, {0x1b123, 0x1b126}, {0x1ccd6, 0x1ccf9}, {0x1d127, 0x1d128},
     {0x1d250, 0x1d252}, {0x1d25b, 0x1d25c}, {0x1d25f, 0x1d25f}, {0x1d280, 0x1d281}, {0x1d6a6, 0x1d6a6},
     {0x1df95, 0x1df95}, {0x1dfcd, 0x1dfff}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
     {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3},
     {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}});

bool is_young(char32_t c) {
  const auto range = std::partition_point(kYoung.begin(), kYoung.end(), [&](const Range& r) { return r.last < c; });
  return range != kYoung.end() && c >= range->first;
}

/// Lower cases that came with Unicode 16 and 17, then utf8proc's.
char32_t lower_case(char32_t c) {
  switch (c) {
    case 0xa7cb:
      return 0x264;
    case 0xa7dc:
      return 0x19b;
    case 0x1c89:
    case 0xa7cc:
    case 0xa7ce:
    case 0xa7d2:
    case 0xa7d4:
    case 0xa7da:
      return c + 1;
    default:
      break;
  }
  if (c >= 0x10d50 && c <= 0x10d65) return c + 0x20;
  if (c >= 0x16ea0 && c <= 0x16eb8) return c + 0x1b;
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

/// Appends `text` in the given form.
void append_form(std::string_view text, UnicodeForm::Form form, std::string& result) {
  using Form = UnicodeForm::Form;
  int options = UTF8PROC_STABLE;
  options |= form == Form::nfc || form == Form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::nfkc || form == Form::nfkd) options |= UTF8PROC_COMPAT;
  uint8_t* mapped = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0) fail_file("A text of {} bytes can't be normalised: {}.", text.size(), utf8proc_errmsg(length));
  result.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
}

std::string run(const UnicodeForm& step, std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  // A character without class and decomposition separates what is before it from what is behind it.
  std::string result;
  size_t kept = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_young(next_code_point(text, at))) continue;
    append_form(text.substr(kept, begin - kept), step.form, result);
    result.append(text.substr(begin, at - begin));
    kept = at;
  }
  append_form(text.substr(kept), step.form, result);
  return result;
}

std::string run(const Lowercase&, std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == 0x130) {  // the one letter whose lower case is two characters
      result += "i\xcc\x87";
    } else {
      append_code_point(result, lower_case(c));
    }
  }
  return result;
}

std::string run(const Prepend& step, std::string_view text) {
  return text.empty() ? std::string() : step.text + std::string(text);
}

std::string run(const ReplaceAll& step, std::string_view text) {
  std::string result;
  Regex::Scanner scanner(step.pattern);
  scanner.start(text);
  size_t kept = 0;
  for (size_t begin = 0, end = 0; scanner.next(begin, end); kept = end) {
    result.append(text.substr(kept, begin - kept)).append(step.text);
  }
  result.append(text.substr(kept));
  return result;
}

std::string run(const StripSpace& step, std::string_view text) {
  size_t begin = 0, end = text.size();
  for (size_t at = begin; step.left && at < end; begin = at) {
    if (!is_white_space(next_code_point(text, at))) break;
  }
  for (size_t at = end; step.right && at > begin; end = at) {
    if (!is_white_space(previous_code_point(text, at))) break;
  }
  return std::string(text.substr(begin, end - begin));
}

}  // namespace

std::string_view Normalizer::apply(std::string_view text, std::string& storage) const {
  for (const NormalizerStep& step : steps_) {
    storage = std::visit([&](const auto& s) { return run(s, text); }, step);
    text = storage;
  }
  return text;
}

}  // namespace yoke
