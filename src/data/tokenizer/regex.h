// Regular expressions of pre-tokenizers, through Oniguruma: the engine, and so the dialect, of Hugging Face's
// `tokenizers`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace yoke {

/// `pattern` with the characters of Unicode 15 and 16 added to \p{..}, \w and \d, which an older Oniguruma lacks.
std::string with_current_unicode(std::string_view pattern);

/// `text` as a pattern that matches just it.
std::string escape_pattern(std::string_view text);

/// A compiled expression. Thread-safe. Its texts must be valid UTF-8.
class Regex {
 public:
  /// UserError (bad_file) when `pattern` is malformed or too large; `where` names the place it was read from.
  Regex(std::string_view pattern, std::string where);

  /// Walks through the matches of one text after another, reusing its memory. Not thread-safe itself.
  class Scanner {
   public:
    explicit Scanner(const Regex& regex);
    Scanner(const Scanner&) = delete;
    Scanner& operator=(const Scanner&) = delete;
    ~Scanner();

    void start(std::string_view text);
    /// Finds the next match; false at the end. An empty match right behind a match doesn't count. UserError (bad_file)
    /// when the expression backtracks beyond all bounds on this text.
    bool next(size_t& begin, size_t& end);

   private:
    struct State;
    const Regex& regex_;
    std::unique_ptr<State> state_;
    std::string_view text_;
    size_t from_ = 0;
    size_t last_end_ = std::string_view::npos;
  };

 private:
  std::shared_ptr<void> compiled_;
  std::string pattern_, where_;
};

}  // namespace yoke
