#include "data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

std::string run(const UnicodeForm& step, std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  const auto form = step.form;
  const bool composed = form == UnicodeForm::Form::nfc || form == UnicodeForm::Form::nfkc;
  options |= composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::Form::nfkc || form == UnicodeForm::Form::nfkd) options |= UTF8PROC_COMPAT;
  uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &result,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) fail_file("A text of {} bytes can't be normalised: {}.", text.size(), utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(result), static_cast<size_t>(length)};
}

std::string run(const Lowercase&, std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == 0x130) {  // the one letter whose lower case is two characters
      result += "i\xcc\x87";
    } else {
      append_code_point(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
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
