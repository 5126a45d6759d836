#include "data/tokenizer/decoder.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

using Tokens = std::vector<std::string>;

std::string join(const Tokens& tokens, std::string_view separator = {}) {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) text.append(i == 0 ? std::string_view() : separator).append(tokens[i]);
  return text;
}

Tokens run(const DecodeByteLevel&, const Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_alphabet(token).value_or(token);
  std::string storage;
  return {std::string(as_utf8(bytes, storage))};
}

/// The byte of "<0x0A>".
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc{} || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

Tokens run(const DecodeByteFallback&, const Tokens& tokens) {
  Tokens result;
  std::string bytes, storage;
  const auto flush = [&] {
    if (as_utf8(bytes, storage).data() == bytes.data()) {
      if (!bytes.empty()) result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      bytes.push_back(*byte);
    } else {
      flush();
      result.push_back(token);
    }
  }
  flush();
  return result;
}

Tokens run(const DecodeFuse& step, const Tokens& tokens) { return {join(tokens, step.separator)}; }

Tokens run(const DecodeStrip& step, Tokens tokens) {
  for (std::string& text : tokens) {
    std::string_view rest = text;
    for (size_t i = 0; i < step.start && rest.starts_with(step.content); ++i) rest.remove_prefix(step.content.size());
    for (size_t i = 0; i < step.stop && rest.ends_with(step.content); ++i) rest.remove_suffix(step.content.size());
    text = std::string(rest);
  }
  return tokens;
}

Tokens run(const DecodeReplace& step, Tokens tokens) {
  Regex::Scanner scanner(step.pattern);
  for (std::string& token : tokens) {
    std::string result;
    size_t kept = 0;
    scanner.start(token);
    for (size_t begin = 0, end = 0; scanner.next(begin, end); kept = end) {
      result.append(token, kept, begin - kept).append(step.text);
    }
    token = result.append(token, kept);
  }
  return tokens;
}

Tokens run(const DecodeMetaspace& step, Tokens tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view space = i == 0 && step.prepended ? "" : " ";
    std::string result;
    for (size_t at = 0; at < tokens[i].size();) {
      if (tokens[i].compare(at, step.replacement.size(), step.replacement) == 0) {
        result += space;
        at += step.replacement.size();
      } else {
        result.push_back(tokens[i][at++]);
      }
    }
    tokens[i] = std::move(result);
  }
  return tokens;
}

}  // namespace

std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens) {
  for (const DecoderStep& step : steps) {
    tokens = std::visit([&](const auto& s) { return run(s, std::move(tokens)); }, step);
  }
  return join(tokens);
}

}  // namespace yoke
