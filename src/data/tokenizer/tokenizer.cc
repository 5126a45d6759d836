#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/json_view.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "data/tokenizer/special_ids.h"
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer_json.h"

namespace yoke {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{128} << 20;
/// Files that a folder's tokenizer is read from; the first that exists counts.
constexpr const char* kMainFiles[] = {"tokenizer.json", "tokenizer.model", "tekken.json"};
constexpr const char* kOtherFiles[] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",   "chat_template.json"};

fs::path main_file(const fs::path& folder) {
  for (const char* name : kMainFiles) {
    if (fs::exists(folder / name)) return folder / name;
  }
  if (fs::exists(folder / "vocab.json")) {
    fail_file(
        "{}: has a vocab.json but no tokenizer.json; save the tokenizer with Hugging Face's `tokenizers` to get one.",
        folder.string());
  }
  fail_file("{}: holds no tokenizer; tokenizer.json, tokenizer.model or tekken.json is expected.", folder.string());
}

/// Adds what the files beside the tokenizer say about begin and end, and the fingerprint.
std::unique_ptr<Tokenizer> finish(BpeTokenizerParts parts, std::string_view kind, std::string_view content) {
  const auto id_of = [&](std::string_view text) {
    const auto found = std::find(parts.tokens.begin(), parts.tokens.end(), text);
    return found == parts.tokens.end() ? std::nullopt
                                       : std::optional(static_cast<int32_t>(found - parts.tokens.begin()));
  };
  const SpecialIds special =
      find_special_ids(parts.path.parent_path(), id_of, static_cast<int64_t>(parts.tokens.size()));
  if (special.bos) parts.bos = special.bos;
  if (special.eos) parts.eos = special.eos;
  // A template that begins with the token outlasts a flag that says no: Hugging Face's libraries run the template.
  parts.adds_bos = parts.adds_bos || special.adds_bos.value_or(false);
  parts.fingerprint = fmt::format("{} {} bos {} eos {}", kind, hash_hex(content.data(), content.size()),
                                  parts.bos.value_or(-1), parts.eos.value_or(-1));
  return make_bpe_tokenizer(std::move(parts));
}

std::unique_ptr<Tokenizer> load_json(const std::string& content, const fs::path& path) {
  const nlohmann::json json = parse_json(content, path);
  if (json.is_object() && json.contains("model"))
    return finish(read_tokenizer_json(json, path), "tokenizer.json", content);
  if (json.is_object() && json.contains("config") && json.contains("vocab")) {
    return finish(read_tekken(json, path), "tekken", content);
  }
  fail_file("{}: is JSON, but neither a tokenizer.json (with a 'model') nor a tekken.json (with 'config' and 'vocab').",
            path.string());
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  if (path == "bytes") return make_bpe_tokenizer(byte_tokenizer_parts());
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? main_file(path) : path;
  if (!fs::exists(file, error)) {
    fail_file("{}: no such tokenizer; 'bytes', a model folder, a tokenizer.json or a tokenizer.model is expected.",
              file.string());
  }
  const std::string content = read_file(file, kMaxFileBytes);
  const size_t start = content.find_first_not_of(" \t\r\n");
  if (start == content.npos) fail_file("{}: is empty.", file.string());
  if (content[start] == '{' || file.extension() == ".json") return load_json(content, file);
  if (looks_like_ranks(content)) return finish(read_llama3_ranks(content, file), "tiktoken", content);
  return make_sentencepiece_tokenizer(content, file);
}

std::vector<fs::path> tokenizer_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  const auto look = [&](const char* name) {
    if (fs::is_regular_file(folder / name, error)) files.push_back(folder / name);
  };
  for (const char* name : kMainFiles) look(name);
  for (const char* name : kOtherFiles) look(name);
  return files;
}

}  // namespace yoke
