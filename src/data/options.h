// What a recipe says about data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace yoke {

/// How documents are stored in files.
///   text    UTF-8; one file is one document.
///   jsonl   one JSON object a line; its "text" is one document.
///   tokens  token ids, see data/tokens_file.h.
/// In every format an end-of-sequence token inside a document ends it there, so that a text file whose stories are
/// separated by a literal <|endoftext|> holds that many documents.
enum class Format : uint8_t { text, jsonl, tokens };

std::string_view name_of(Format format);
/// UserError (usage) with the nearest legal name.
Format parse_format(std::string_view name);

struct DataOptions {
  std::vector<std::string> train;  ///< files, globs (*, ?, [], **) or folders
  /// The part of the documents that is held out, 0 <= fraction < 1, or files of their own.
  std::variant<double, std::vector<std::string>> validation = 0.0;
  Format format = Format::text;
  int64_t sequence_length = 1024;
  bool packing = true;
  uint64_t seed = 1;            ///< decides the order of rows; what is held out doesn't depend on it
  std::filesystem::path cache;  ///< folder of the token cache; created when missing
  int threads = 1;              ///< for tokenising
};

/// UserError (usage) when a value is out of range.
void check(const DataOptions& options);

}  // namespace yoke
