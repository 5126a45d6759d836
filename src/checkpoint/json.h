// JSON from files that may be damaged or hostile: bounded depth, no duplicate keys, errors that name the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace yoke {

/// The document. UserError (bad_file) that names `file` and the position when the text isn't JSON, nests deeper than
/// 64 levels, has a key twice in one object or is longer than 16 MiB.
nlohmann::json parse_json(std::string_view text, std::string_view file);

}  // namespace yoke
