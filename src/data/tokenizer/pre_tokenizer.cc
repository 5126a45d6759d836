#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

using Span = Words::Span;

/// A stretch of a word: a match of the pattern or what lies between two matches. May be empty.
struct Part {
  size_t begin, end;
  bool match;
};

void find_parts(Regex::Scanner& scanner, std::string_view word, bool invert, std::vector<Part>& parts) {
  parts.clear();
  scanner.start(word);
  size_t kept = 0;
  for (size_t begin = 0, end = 0; scanner.next(begin, end); kept = end) {
    if (begin != kept) parts.push_back({kept, begin, invert});
    parts.push_back({begin, end, !invert});
  }
  if (kept != word.size()) parts.push_back({kept, word.size(), invert});
}

/// Joins parts in place as `behavior` says. Parts that are left may be empty.
void join_parts(SplitBehavior behavior, std::vector<Part>& parts) {
  std::vector<Part> joined;
  switch (behavior) {
    case SplitBehavior::isolated:
      return;
    case SplitBehavior::removed:
      std::erase_if(parts, [](const Part& part) { return part.match; });
      return;
    case SplitBehavior::contiguous:
      for (const Part& part : parts) {
        if (!joined.empty() && joined.back().match == part.match) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
      }
      break;
    case SplitBehavior::merged_with_previous: {
      bool previous_match = false;
      for (const Part& part : parts) {
        if (part.match && !previous_match && !joined.empty()) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
        previous_match = part.match;
      }
      break;
    }
    case SplitBehavior::merged_with_next: {
      bool next_match = false;
      for (size_t i = parts.size(); i-- > 0;) {
        if (parts[i].match && !next_match && !joined.empty()) {
          joined.back().begin = parts[i].begin;
        } else {
          joined.push_back(parts[i]);
        }
        next_match = parts[i].match;
      }
      std::reverse(joined.begin(), joined.end());
      break;
    }
  }
  parts = std::move(joined);
}

void split(const Regex& pattern, SplitBehavior behavior, bool invert, Words& words) {
  std::vector<Span> spans;
  spans.reserve(words.spans.size());
  Regex::Scanner scanner(pattern);
  std::vector<Part> parts;
  for (const Span& word : words.spans) {
    find_parts(scanner, words.text.substr(word.begin, word.end - word.begin), invert, parts);
    join_parts(behavior, parts);
    for (const Part& part : parts) {
      if (part.begin != part.end) spans.push_back({word.begin + part.begin, word.begin + part.end});
    }
  }
  words.spans = std::move(spans);
}

/// Writes every word anew: `write` appends a word's text.
template <class Write>
void rewrite(Words& words, Write write) {
  std::string text;
  text.reserve(words.text.size());
  for (size_t i = 0; i < words.spans.size(); ++i) {
    Span& word = words.spans[i];
    const size_t begin = text.size();
    write(i, words.text.substr(word.begin, word.end - word.begin), text);
    word = {begin, text.size()};
  }
  words.storage = std::move(text);
  words.text = words.storage;
}

void run(const Split& step, Words& words) { split(step.pattern, step.behavior, step.invert, words); }

void run(const PrefixSpace&, Words& words) {
  rewrite(words, [](size_t, std::string_view word, std::string& text) {
    if (!word.starts_with(' ')) text.push_back(' ');
    text.append(word);
  });
}

void run(const MapBytes&, Words& words) {
  const auto& alphabet = byte_alphabet();
  rewrite(words, [&](size_t, std::string_view word, std::string& text) {
    for (const char c : word) text.append(alphabet[static_cast<uint8_t>(c)]);
  });
}

void run(const Metaspace& step, Words& words) {
  rewrite(words, [&](size_t index, std::string_view word, std::string& text) {
    const bool wanted = step.prepend == Metaspace::Prepend::always ||
                        (step.prepend == Metaspace::Prepend::first && words.starts_input && index == 0);
    if (wanted && !word.starts_with(' ') && !word.starts_with(step.replacement)) text.append(step.replacement);
    for (const char c : word) {
      if (c == ' ') {
        text.append(step.replacement);
      } else {
        text.push_back(c);
      }
    }
  });
}

}  // namespace

void pre_tokenize(const std::vector<PreTokenizerStep>& steps, Words& words) {
  for (const PreTokenizerStep& step : steps) {
    std::visit([&](const auto& s) { run(s, words); }, step);
  }
}

}  // namespace yoke
