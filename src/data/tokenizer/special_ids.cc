#include "data/tokenizer/special_ids.h"

#include <algorithm>
#include <charconv>

#include "base/file.h"
#include "data/tokenizer/json_view.h"

namespace yoke {

namespace {

constexpr size_t kMaxSidecarBytes = size_t{64} << 20;
constexpr int64_t kMaxId = INT32_MAX - 1;

std::optional<nlohmann::json> read_sidecar(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  return parse_json(read_file(path, kMaxSidecarBytes), path);
}

/// The text of "bos_token": a string or an added-token object.
std::optional<std::string> token_text(const JsonView& file, std::string_view key) {
  if (!file.has(key)) return std::nullopt;
  const JsonView view = file.at(key);
  return view.value().is_object() ? view.text("content") : view.text();
}

std::optional<int32_t> token_id(const JsonView& file, std::string_view key, int64_t vocabulary_size) {
  if (!file.has(key)) return std::nullopt;
  const JsonView view = file.at(key);
  if (view.value().is_array()) {
    if (view.value().empty()) return std::nullopt;
    const nlohmann::json first = {{std::string(key), view.value().front()}};
    return static_cast<int32_t>(JsonView(first, file.where()).integer(key, 0, vocabulary_size - 1));
  }
  return static_cast<int32_t>(file.integer(key, 0, vocabulary_size - 1));
}

int32_t parse_id(const JsonView& view, const std::string& text) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc{} || end != text.data() + text.size() || id < 0 || id > kMaxId) {
    view.fail("'{}' is no token id.", text);
  }
  return id;
}

}  // namespace

AddedToken read_added_token(const JsonView& view) {
  AddedToken token;
  token.content = view.text("content");
  token.special = view.flag("special", false);
  token.normalized = view.flag("normalized", !token.special);
  token.lstrip = view.flag("lstrip", false);
  token.rstrip = view.flag("rstrip", false);
  token.single_word = view.flag("single_word", false);
  constexpr size_t kMaxContentBytes = 4096;
  if (token.content.empty()) view.fail("the content is empty.");
  if (token.content.size() > kMaxContentBytes) {
    view.fail("the content has {} bytes; at most {} are legal.", token.content.size(), kMaxContentBytes);
  }
  return token;
}

SpecialIds find_special_ids(const std::filesystem::path& folder,
                            const std::function<std::optional<int32_t>(std::string_view)>& id_of,
                            int64_t vocabulary_size) {
  SpecialIds ids;
  const auto by_text = [&](const JsonView& file, std::string_view key, std::optional<int32_t>& id) {
    const auto text = id ? std::nullopt : token_text(file, key);
    if (!text) return;
    id = id_of(*text);
    if (!id) file.fail("{} is '{}', which is no token of this tokenizer.", key, *text);
  };
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (const auto json = read_sidecar(folder / name)) {
      const JsonView file(*json, (folder / name).string());
      if (!ids.adds_bos && file.has("add_bos_token")) ids.adds_bos = file.flag("add_bos_token");
      by_text(file, "bos_token", ids.bos);
      by_text(file, "eos_token", ids.eos);
    }
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (ids.bos && ids.eos) break;
    if (const auto json = read_sidecar(folder / name)) {
      const JsonView file(*json, (folder / name).string());
      if (!ids.bos) ids.bos = token_id(file, "bos_token_id", vocabulary_size);
      if (!ids.eos) ids.eos = token_id(file, "eos_token_id", vocabulary_size);
    }
  }
  return ids;
}

std::vector<AddedToken> find_added_tokens(const std::filesystem::path& folder) {
  std::vector<AddedToken> tokens;
  const auto config = read_sidecar(folder / "tokenizer_config.json");
  if (config && JsonView(*config, (folder / "tokenizer_config.json").string()).has("added_tokens_decoder")) {
    const JsonView file(*config, (folder / "tokenizer_config.json").string());
    const JsonView decoder = file.at("added_tokens_decoder");
    for (const auto& [id, entry] : decoder.object().items()) {
      tokens.push_back(read_added_token(decoder.child(entry, id)));
      tokens.back().id = parse_id(decoder, id);
    }
  } else if (const auto added = read_sidecar(folder / "added_tokens.json")) {
    const JsonView view(*added, (folder / "added_tokens.json").string());
    for (const auto& [content, id] : view.object().items()) {
      tokens.push_back({.id = static_cast<int32_t>(view.integer(content, 0, kMaxId)), .content = content});
      if (content.empty()) view.fail("a token is empty.");
    }
  }
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return tokens;
}

}  // namespace yoke
