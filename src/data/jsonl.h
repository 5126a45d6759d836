// JSON lines with a "text" field.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace yoke {

/// Calls `document` with the "text" of every line of `lines`, which begin with line `first_line` (from 1) of `file`.
/// Blank lines are skipped; other fields are ignored; when "text" comes twice in a line the last one counts. A line
/// that isn't UTF-8, isn't a JSON object or has no string "text" is a UserError (bad_file) that names file and line.
/// Memory: one line's text, whatever the nesting.
void for_each_text(std::string_view lines, const std::string& file, int64_t first_line,
                   const std::function<void(const std::string& text)>& document);

}  // namespace yoke
