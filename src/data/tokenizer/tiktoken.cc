#include "data/tokenizer/tiktoken.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/tokenizer/json_view.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

constexpr size_t kMaxTokenBytes = 512;
constexpr size_t kLlama3Ranks = 128000;
constexpr size_t kLlama3Special = 256;
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Special tokens of Llama 3.1 and later by position; the others are reserved and numbered.
constexpr std::array<std::string_view, 12> kLlama3Names = {"<|begin_of_text|>",
                                                           "<|end_of_text|>",
                                                           "<|reserved_special_token_0|>",
                                                           "<|reserved_special_token_1|>",
                                                           "<|finetune_right_pad_id|>",
                                                           "<|step_id|>",
                                                           "<|start_header_id|>",
                                                           "<|end_header_id|>",
                                                           "<|eom_id|>",
                                                           "<|eot_id|>",
                                                           "<|python_tag|>",
                                                           "<|image|>"};
/// Special tokens of the tekken.json files that carry none of their own.
constexpr std::array<std::string_view, 20> kTekkenNames = {"<unk>",
                                                           "<s>",
                                                           "</s>",
                                                           "[INST]",
                                                           "[/INST]",
                                                           "[AVAILABLE_TOOLS]",
                                                           "[/AVAILABLE_TOOLS]",
                                                           "[TOOL_RESULTS]",
                                                           "[/TOOL_RESULTS]",
                                                           "[TOOL_CALLS]",
                                                           "[IMG]",
                                                           "<pad>",
                                                           "[IMG_BREAK]",
                                                           "[IMG_END]",
                                                           "[PREFIX]",
                                                           "[MIDDLE]",
                                                           "[SUFFIX]",
                                                           "[SYSTEM_PROMPT]",
                                                           "[/SYSTEM_PROMPT]",
                                                           "[TOOL_CONTENT]"};

/// The bytes of a base64 text, or nothing when it isn't one.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int pending = 0;
  for (const char c : text) {
    static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    pending += 6;
    if (pending >= 8) {
      pending -= 8;
      bytes.push_back(static_cast<char>(bits >> pending & 0xff));
    }
  }
  return bytes;
}

/// One line of a file of ranks.
std::optional<std::pair<std::string, uint32_t>> parse_rank_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == line.npos) return std::nullopt;
  auto bytes = decode_base64(line.substr(0, space));
  uint32_t rank = 0;
  const char* const last = line.data() + line.size();
  const auto [end, error] = std::from_chars(line.data() + space + 1, last, rank);
  if (!bytes || bytes->empty() || error != std::errc{} || end != last) return std::nullopt;
  return std::pair(std::move(*bytes), rank);
}

std::string_view take_line(std::string_view& content) {
  const size_t newline = content.find('\n');
  std::string_view line = content.substr(0, newline);
  content.remove_prefix(newline == content.npos ? content.size() : newline + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// Fills the model from `by_rank`; the id of a rank is `first_id` higher. Two neighbours merge when their bytes
/// together are a token, lowest rank first: so every way to cut a token in two is a merge of that token's rank.
void set_ranks(const std::vector<std::string>& by_rank, int32_t first_id, BpeTokenizerParts& parts) {
  const std::string path = parts.path.string();
  auto& bpe = parts.bpe;
  bpe.raw_bytes = true;
  bpe.ignore_merges = true;
  parts.tokens.resize(static_cast<size_t>(first_id) + by_rank.size());
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::string& bytes = by_rank[rank];
    const auto id = static_cast<int32_t>(rank) + first_id;
    if (bytes.size() > kMaxTokenBytes) {
      fail_file("{}: the token of rank {} has {} bytes; at most {} are legal.", path, rank, bytes.size(),
                kMaxTokenBytes);
    }
    if (!bpe.ids.emplace(bytes, id).second) fail_file("{}: the token of rank {} is listed twice.", path, rank);
    std::string text;
    for (const char byte : bytes) text += byte_alphabet()[static_cast<uint8_t>(byte)];
    parts.tokens[static_cast<size_t>(id)] = std::move(text);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!bpe.ids.contains(std::string(1, static_cast<char>(byte)))) {
      fail_file("{}: the byte {} has no token.", path, byte);
    }
  }
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::string_view bytes = by_rank[rank];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = bpe.ids.find(bytes.substr(0, cut));
      if (left == bpe.ids.end()) continue;
      const auto right = bpe.ids.find(bytes.substr(cut));
      if (right == bpe.ids.end()) continue;
      bpe.merges.push_back(
          {left->second, right->second, static_cast<int32_t>(rank) + first_id, static_cast<uint32_t>(rank)});
    }
  }
}

void add_special(int32_t id, std::string content, BpeTokenizerParts& parts) {
  if (parts.tokens.size() <= static_cast<size_t>(id)) parts.tokens.resize(static_cast<size_t>(id) + 1);
  parts.tokens[static_cast<size_t>(id)] = content;
  parts.added.push_back({.id = id, .content = std::move(content), .special = true});
}

/// Names of the `count` special tokens of a tekken.json by rank.
std::vector<std::string> tekken_special_names(const JsonView& file, size_t count) {
  std::vector<std::string> names;
  if (file.has("special_tokens")) {
    const auto entries = file.at("special_tokens").items();
    if (entries.size() > count) file.fail("has {} special tokens; its config announces {}.", entries.size(), count);
    for (const JsonView& entry : entries) {
      entry.integer("rank", static_cast<int64_t>(names.size()), static_cast<int64_t>(names.size()));
      names.push_back(entry.text("token_str"));
      if (names.back().empty()) entry.fail("the token is empty.");
    }
  } else {
    names.assign(kTekkenNames.begin(),
                 kTekkenNames.begin() + static_cast<int64_t>(std::min(count, kTekkenNames.size())));
  }
  while (names.size() < count) names.push_back(fmt::format("<SPECIAL_{}>", names.size()));
  return names;
}

}  // namespace

bool looks_like_ranks(std::string_view content) { return parse_rank_line(take_line(content)).has_value(); }

BpeTokenizerParts read_llama3_ranks(std::string_view content, const std::filesystem::path& path) {
  std::vector<std::string> by_rank;
  for (size_t number = 1; !content.empty(); ++number) {
    const std::string_view line = take_line(content);
    if (line.empty()) continue;
    auto parsed = parse_rank_line(line);
    if (!parsed) fail_file("{}: line {} is not a base64 token and its rank.", path.string(), number);
    if (parsed->second != by_rank.size()) {
      fail_file("{}: line {} has the rank {}; {} is expected.", path.string(), number, parsed->second, by_rank.size());
    }
    by_rank.push_back(std::move(parsed->first));
  }
  if (by_rank.size() != kLlama3Ranks) {
    fail_file(
        "{}: is a tiktoken file of {} ranks. Such files don't say how text is cut and which special tokens exist; "
        "only Llama 3's, of {} ranks, is known. Use the model's tokenizer.json instead.",
        path.string(), by_rank.size(), kLlama3Ranks);
  }
  BpeTokenizerParts parts;
  parts.path = path;
  parts.pre_tokenizer.emplace_back(Split{Regex(kLlama3Pattern, path.string()), SplitBehavior::isolated});
  parts.decoder.emplace_back(DecodeByteLevel{});
  set_ranks(by_rank, 0, parts);
  for (size_t i = 0; i < kLlama3Special; ++i) {
    // The numbering of the reserved ones goes on after the two among the named ones.
    const std::string name = i < kLlama3Names.size()
                                 ? std::string(kLlama3Names[i])
                                 : fmt::format("<|reserved_special_token_{}|>", i - kLlama3Names.size() + 2);
    add_special(static_cast<int32_t>(kLlama3Ranks + i), name, parts);
  }
  parts.bos = static_cast<int32_t>(kLlama3Ranks);
  parts.adds_bos = true;
  parts.eos = static_cast<int32_t>(kLlama3Ranks) + 1;
  return parts;
}

BpeTokenizerParts read_tekken(const nlohmann::json& json, const std::filesystem::path& path) {
  const JsonView file(json, path.string());
  const JsonView config = file.at("config"), vocabulary = file.at("vocab");
  const auto entries = static_cast<int64_t>(vocabulary.array().size());
  const int64_t special = config.integer("default_num_special_tokens", 0, 1 << 20);
  const int64_t size = config.integer("default_vocab_size", special + 1, entries + special);

  BpeTokenizerParts parts;
  parts.path = path;
  parts.pre_tokenizer.emplace_back(
      Split{Regex(config.text("pattern"), config.at("pattern").where()), SplitBehavior::isolated});
  parts.decoder.emplace_back(DecodeByteLevel{});
  std::vector<std::string> by_rank;
  for (int64_t rank = 0; rank < size - special; ++rank) {
    const JsonView entry = vocabulary.child(vocabulary.array()[static_cast<size_t>(rank)], fmt::format("[{}]", rank));
    entry.integer("rank", rank, rank);
    auto bytes = decode_base64(entry.text("token_bytes"));
    if (!bytes || bytes->empty()) entry.fail("'token_bytes' is not base64 of at least one byte.");
    by_rank.push_back(std::move(*bytes));
  }
  const auto names = tekken_special_names(file, static_cast<size_t>(special));
  for (size_t i = 0; i < names.size(); ++i) {
    add_special(static_cast<int32_t>(i), names[i], parts);
    if (names[i] == "<s>") parts.bos = static_cast<int32_t>(i);
    if (names[i] == "</s>") parts.eos = static_cast<int32_t>(i);
  }
  parts.adds_bos = true;  // as mistral-common's encoders do
  set_ranks(by_rank, static_cast<int32_t>(special), parts);
  return parts;
}

}  // namespace yoke
