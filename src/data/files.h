// Patterns of a recipe to the files they name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/options.h"

namespace yoke {

/// Files that `patterns` name, in the order of the patterns, each pattern's sorted by their bytes; a file that several
/// patterns name comes once. A pattern is
///   a file,
///   a glob: *, ?, [] match inside one path component, `**` any number of folders; only files match, and a leading dot
///     only matches a dot,
///   a folder: every file below it with an ending of the format (text: .txt .text .md; jsonl: .jsonl .ndjson .json;
///     tokens: .tokens .bin), hidden ones excepted.
/// A pattern that names nothing is a UserError (bad_file) that says where it looked.
std::vector<std::filesystem::path> expand_patterns(const std::vector<std::string>& patterns, Format format);

}  // namespace yoke
