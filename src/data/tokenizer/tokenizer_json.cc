#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/tokenizer/json_view.h"
#include "data/tokenizer/special_ids.h"
#include "data/tokenizer/tokenizer_json_steps.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

/// Ids may have holes, within reason: a table over all ids is kept.
int64_t largest_legal_id(size_t tokens) { return static_cast<int64_t>(4 * tokens) + 65535; }

/// Enters the text of `id`; two tokens must not share one.
void enter(std::vector<std::optional<std::string>>& tokens, int32_t id, const std::string& text, const JsonView& view) {
  if (tokens.size() <= static_cast<size_t>(id)) tokens.resize(static_cast<size_t>(id) + 1);
  auto& slot = tokens[static_cast<size_t>(id)];
  if (slot && *slot != text) view.fail("the tokens '{}' and '{}' have the same id {}.", *slot, text, id);
  slot = text;
}

TokenIds read_vocabulary(const JsonView& view, std::vector<std::optional<std::string>>& tokens) {
  const auto& object = view.object();
  const int64_t largest = largest_legal_id(object.size());
  TokenIds ids;
  ids.reserve(object.size());
  for (const auto& [text, id] : object.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > largest) {
      view.fail("the id of '{}' is {}; for a vocabulary of {} tokens an integer from 0 to {} is expected.", text,
                id.is_number() ? id.dump() : "no number", object.size(), largest);
    }
    const auto number = static_cast<int32_t>(id.get<int64_t>());
    enter(tokens, number, text, view);
    ids.emplace(text, number);
  }
  return ids;
}

/// The two texts of a merge: "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> merge_texts(const nlohmann::json& merge, size_t rank,
                                                          const JsonView& view) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  view.fail("merge {} must be two tokens, as \"a b\" or [\"a\", \"b\"].", rank);
}

std::vector<BpeParts::Merge> read_merges(const JsonView& view, const TokenIds& ids) {
  std::vector<BpeParts::Merge> merges;
  const auto id_of = [&](std::string_view token, size_t rank) {
    const auto found = ids.find(token);
    if (found == ids.end()) view.fail("merge {} needs the token '{}', which is not in the vocabulary.", rank, token);
    return found->second;
  };
  const auto& array = view.array();
  merges.reserve(array.size());
  std::string joined;
  for (size_t rank = 0; rank < array.size(); ++rank) {
    const auto [left, right] = merge_texts(array[rank], rank, view);
    joined.assign(left).append(right);
    merges.push_back({id_of(left, rank), id_of(right, rank), id_of(joined, rank), static_cast<uint32_t>(rank)});
  }
  return merges;
}

std::optional<std::array<int32_t, 256>> read_byte_fallback(const JsonView& model, const TokenIds& ids) {
  if (!model.flag("byte_fallback", false)) return std::nullopt;
  std::array<int32_t, 256> table{};
  int known = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(fmt::format("<0x{:02X}>", byte));
    if (found == ids.end()) continue;
    table[static_cast<size_t>(byte)] = found->second;
    ++known;
  }
  if (known == 0) return std::nullopt;
  if (known != 256) model.fail("'byte_fallback' is set, but only {} of the tokens <0x00> to <0xFF> exist.", known);
  return table;
}

void check_model(const JsonView& model) {
  if (model.has("type") && model.text("type") != "BPE") {
    model.fail("models of type '{}' are not supported; BPE is.", model.text("type"));
  }
  model.allow_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges", "cache_capacity"});
  if (model.has("dropout") && model.at("dropout").value() != 0.0) {
    model.fail("'dropout' makes ids random and is not supported; set it to null.");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.has(key) && !model.text(key).empty()) model.fail("'{}' is not supported; it must be null.", key);
  }
}

BpeParts read_model(const JsonView& model, std::vector<std::optional<std::string>>& tokens) {
  check_model(model);
  BpeParts bpe;
  bpe.ids = read_vocabulary(model.at("vocab"), tokens);
  bpe.merges = read_merges(model.at("merges"), bpe.ids);
  bpe.ignore_merges = model.flag("ignore_merges", false);
  bpe.fuse_unknown = model.flag("fuse_unk", false);
  bpe.byte_fallback = read_byte_fallback(model, bpe.ids);
  if (model.has("unk_token")) {
    const auto found = bpe.ids.find(model.text("unk_token"));
    if (found == bpe.ids.end())
      model.fail("'unk_token' is '{}', which is not in the vocabulary.", model.text("unk_token"));
    bpe.unknown = found->second;
  }
  return bpe;
}

/// Hugging Face's library doesn't take the ids of added tokens from the file: a token of the vocabulary keeps its id,
/// the others get the next free one. Files where that differs mean different things to different programs.
std::vector<AddedToken> read_added_tokens(const JsonView& view, const TokenIds& ids,
                                          std::vector<std::optional<std::string>>& tokens) {
  std::vector<AddedToken> added;
  TokenIds given;
  const auto vocabulary = static_cast<int64_t>(ids.size());
  int64_t next = vocabulary;
  for (const JsonView& entry : view.items()) {
    entry.allow_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = read_added_token(entry);
    token.id = static_cast<int32_t>(entry.integer("id", 0, largest_legal_id(ids.size() + view.array().size())));
    const auto known = ids.find(token.content);
    const auto repeated = given.find(token.content);
    const int64_t expected = known != ids.end() ? known->second : repeated != given.end() ? repeated->second : next;
    if (token.id != expected) {
      entry.fail(
          "'{}' has the id {}, but Hugging Face's library would give it {}: ids of added tokens must follow the "
          "vocabulary without holes.",
          token.content, token.id, expected);
    }
    next = std::max(next, expected + 1);
    enter(tokens, token.id, token.content, entry);
    given.emplace(token.content, token.id);
    added.push_back(std::move(token));
  }
  return added;
}

/// Where the last step maps bytes to characters, words stay bytes and the vocabulary is turned around instead.
void use_raw_bytes(BpeTokenizerParts& parts) {
  if (parts.pre_tokenizer.empty() || !std::holds_alternative<MapBytes>(parts.pre_tokenizer.back())) return;
  parts.pre_tokenizer.pop_back();
  parts.bpe.raw_bytes = true;
  TokenIds by_bytes;
  by_bytes.reserve(parts.bpe.ids.size());
  for (const auto& [text, id] : parts.bpe.ids) {
    if (auto bytes = bytes_of_alphabet(text)) by_bytes.emplace(std::move(*bytes), id);
  }
  parts.bpe.ids = std::move(by_bytes);
}

/// The token that a template puts before a text, if it does: TemplateProcessing, alone or in a Sequence.
std::optional<int32_t> leading_token(const JsonView& processor) {
  if (processor.text("type") == "Sequence") {
    for (const JsonView& step : processor.at("processors").items()) {
      if (const auto id = leading_token(step)) return id;
    }
    return std::nullopt;
  }
  if (processor.text("type") != "TemplateProcessing") return std::nullopt;
  const auto pieces = processor.at("single").items();
  if (pieces.empty() || !pieces.front().has("SpecialToken")) return std::nullopt;
  const JsonView token = processor.at("special_tokens").at(pieces.front().at("SpecialToken").text("id"));
  const auto ids = token.at("ids").items();
  if (ids.size() != 1) return std::nullopt;
  const nlohmann::json entry = {{"id", ids.front().value()}};
  return static_cast<int32_t>(token.child(entry, "ids").integer("id", 0, INT32_MAX - 1));
}

}  // namespace

BpeTokenizerParts read_tokenizer_json(const nlohmann::json& json, const std::filesystem::path& path) {
  const JsonView file(json, path.string());
  BpeTokenizerParts parts;
  parts.path = path;
  if (file.has("version") && file.text("version") != "1.0") {
    file.fail("has the version '{}'; 1.0 is known.", file.text("version"));
  }
  parts.bpe = read_model(file.at("model"), parts.tokens);
  if (file.has("added_tokens")) {
    parts.added = read_added_tokens(file.at("added_tokens"), parts.bpe.ids, parts.tokens);
  }
  if (file.has("normalizer")) read_normalizer(file.at("normalizer"), parts.normalizer);
  if (file.has("pre_tokenizer")) read_pre_tokenizer(file.at("pre_tokenizer"), parts.pre_tokenizer);
  if (file.has("decoder")) {
    read_decoder(file.at("decoder"), parts.decoder);
  } else {
    parts.decoder.emplace_back(DecodeFuse{" "});
  }
  if (parts.tokens.empty()) file.fail("has no tokens.");
  if (file.has("post_processor")) {
    if (const auto id = leading_token(file.at("post_processor"))) {
      if (static_cast<size_t>(*id) >= parts.tokens.size()) {
        file.at("post_processor")
            .fail("begins texts with the token {}, but ids end at {}.", *id, parts.tokens.size() - 1);
      }
      parts.bos = id;
      parts.adds_bos = true;
    }
  }
  use_raw_bytes(parts);
  return parts;
}

}  // namespace yoke
