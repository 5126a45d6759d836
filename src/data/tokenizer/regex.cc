#include "data/tokenizer/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

constexpr size_t kMaxPatternBytes = size_t{1} << 16;
/// Backtracking steps: of one match (Oniguruma's own default), and of one search, which may have to try every position.
constexpr unsigned long kRetriesInMatch = 10'000'000;
constexpr unsigned long kRetriesPerByte = 1000;

std::string message_of(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> buffer{};
  const int length = onig_error_code_to_str(buffer.data(), code, info);
  return {reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(std::max(length, 0))};
}

const OnigUChar* bytes(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

/// As much of a pattern as belongs in a message.
std::string shown(std::string_view pattern) {
  return pattern.size() <= 80 ? std::string(pattern) : std::string(pattern.substr(0, 77)) + "...";
}

}  // namespace

std::string escape_pattern(std::string_view text) {
  static constexpr std::string_view kMeta = R"(\.+*?()|[]{}^$#&-~)";
  std::string pattern;
  for (const char c : text) {
    if (kMeta.find(c) != kMeta.npos) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

Regex::Regex(std::string_view pattern, std::string where) : pattern_(pattern), where_(std::move(where)) {
  static std::once_flag initialised;
  std::call_once(initialised, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
  if (pattern.size() > kMaxPatternBytes) {
    fail_file("{}: the regular expression has {} bytes; at most {} are legal.", where_, pattern.size(),
              kMaxPatternBytes);
  }
  const std::string current = with_current_unicode(pattern);
  OnigRegex raw = nullptr;
  OnigErrorInfo info{};
  const int code = onig_new(&raw, bytes(current), bytes(current) + current.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                            OnigDefaultSyntax, &info);
  if (code != ONIG_NORMAL) {
    fail_file("{}: the regular expression '{}' can't be used: {}.", where_, shown(pattern_), message_of(code, &info));
  }
  compiled_ = std::shared_ptr<void>(raw, [](void* regex) { onig_free(static_cast<OnigRegex>(regex)); });
}

struct Regex::Scanner::State {
  OnigRegion* region = onig_region_new();
  OnigMatchParam* limits = onig_new_match_param();
};

Regex::Scanner::Scanner(const Regex& regex) : regex_(regex), state_(std::make_unique<State>()) {
  YOKE_ASSERT(state_->region != nullptr && state_->limits != nullptr);
  onig_initialize_match_param(state_->limits);
  onig_set_retry_limit_in_match_of_match_param(state_->limits, kRetriesInMatch);
}

Regex::Scanner::~Scanner() {
  onig_free_match_param(state_->limits);
  onig_region_free(state_->region, 1);
}

void Regex::Scanner::start(std::string_view text) {
  text_ = text;
  from_ = 0;
  last_end_ = text.npos;
  onig_set_retry_limit_in_search_of_match_param(state_->limits, kRetriesInMatch + kRetriesPerByte * text.size());
}

bool Regex::Scanner::next(size_t& begin, size_t& end) {
  const auto regex = static_cast<OnigRegex>(regex_.compiled_.get());
  const OnigUChar *first = bytes(text_), *last = first + text_.size();
  while (from_ <= text_.size()) {
    const int at = onig_search_with_param(regex, first, last, first + from_, last, state_->region, ONIG_OPTION_NONE,
                                          state_->limits);
    if (at == ONIG_MISMATCH) break;
    if (at < 0) {
      fail_file("{}: the regular expression '{}' can't be matched against a text of {} bytes: {}.", regex_.where_,
                shown(regex_.pattern_), text_.size(), message_of(at, nullptr));
    }
    begin = static_cast<size_t>(state_->region->beg[0]);
    end = static_cast<size_t>(state_->region->end[0]);
    if (begin == end && end == last_end_) {
      from_ += from_ < text_.size() ? utf8_length(text_[from_]) : 1;
      continue;
    }
    from_ = last_end_ = end;
    return true;
  }
  from_ = text_.size() + 1;
  return false;
}

}  // namespace yoke
