#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

uint64_t edge(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<uint8_t>(byte); }

/// A word character as Unicode's regular expressions define it.
bool is_word_character(std::string_view character) {
  static const Regex word(R"([\p{Alphabetic}\w\p{M}\p{Nl}\x{200c}\x{200d}])", "word characters");
  Regex::Scanner scanner(word);
  scanner.start(character);
  size_t begin = 0, end = 0;
  return scanner.next(begin, end);
}

size_t skip_space_left(std::string_view text, size_t at, size_t stop) {
  while (at > stop) {
    size_t before = at;
    if (!is_white_space(previous_code_point(text, before)) || before < stop) break;
    at = before;
  }
  return at;
}

size_t skip_space_right(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t behind = at;
    if (!is_white_space(next_code_point(text, behind))) break;
    at = behind;
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  ends_.push_back(-1);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    YOKE_ASSERT(!content.empty());
    starts_[static_cast<uint8_t>(content[0])] = true;
    uint32_t node = 0;
    for (const char byte : content) {
      uint32_t& next = edges_[edge(node, byte)];
      if (next == 0) {
        next = static_cast<uint32_t>(ends_.size());
        ends_.push_back(-1);
      }
      node = next;
    }
    if (ends_[node] < 0) ends_[node] = static_cast<int32_t>(i);
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  uint32_t node = 0;
  int32_t found = -1;
  for (; at < text.size(); ++at) {
    const uint32_t* next = edges_.find(edge(node, text[at]));
    if (next == nullptr) break;
    node = *next;
    if (ends_[node] >= 0) found = ends_[node];
  }
  return found < 0 ? nullptr : &tokens_[static_cast<size_t>(found)];
}

bool AddedTokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) const {
  if (begin > 0) {
    size_t at = begin;
    previous_code_point(text, at);
    if (is_word_character(text.substr(at, begin - at))) return false;
  }
  return end == text.size() || !is_word_character(text.substr(end, utf8_length(text[end])));
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t kept = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = starts_[static_cast<uint8_t>(text[at])] ? longest_at(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;  // the next token starts here even when this one doesn't count
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    if (token->lstrip) begin = std::max(skip_space_left(text, begin, std::min(kept, begin)), kept);
    if (token->rstrip) end = skip_space_right(text, end);
    if (kept < begin) parts.push_back({text.substr(kept, begin - kept), std::nullopt});
    parts.push_back({text.substr(begin, end - begin), token->id});
    kept = end;
  }
  if (kept < text.size()) parts.push_back({text.substr(kept), std::nullopt});
  return parts;
}

}  // namespace yoke
