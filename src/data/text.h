// Checks on raw text, and where a long text may be cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace yoke {

/// UserError (bad_file) that names `file` and the byte's offset unless `bytes` is UTF-8 without NUL. `offset` is where
/// `bytes` begins in the file.
void check_utf8(std::string_view bytes, const std::string& file, uint64_t offset);

/// \r\n becomes \n; a lone \r stays. Returns how many were replaced.
int64_t normalise_newlines(std::string& text);

/// Where a long text may be cut so that the ids of the parts are those of the whole: behind a newline that stands
/// between a character that isn't white space and an ASCII letter or digit, or another character beyond ASCII that
/// isn't white space. The pre-tokenisers of the supported families end a word there whether or not the text goes on. A
/// \r before the newline counts as part of it. Returns the largest such place in (0, limit], or 0; `limit` <
/// text.size().
size_t last_safe_cut(std::string_view text, size_t limit);

/// The largest place in (0, limit] that isn't inside a UTF-8 sequence or \r\n; `limit` < text.size().
size_t last_character_cut(std::string_view text, size_t limit);

}  // namespace yoke
