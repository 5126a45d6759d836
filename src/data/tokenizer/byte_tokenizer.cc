#include "data/tokenizer/byte_tokenizer.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

constexpr std::array<std::string_view, 3> kSpecial = {"<|bos|>", "<|eos|>", "<|pad|>"};
constexpr int32_t kBos = 256, kEos = 257;

}  // namespace

BpeTokenizerParts byte_tokenizer_parts() {
  BpeTokenizerParts parts;
  parts.bpe.raw_bytes = true;
  for (int32_t byte = 0; byte < 256; ++byte) {
    parts.bpe.ids.emplace(std::string(1, static_cast<char>(byte)), byte);
    parts.tokens.emplace_back(byte_alphabet()[static_cast<size_t>(byte)]);
  }
  for (const std::string_view content : kSpecial) {
    const auto id = static_cast<int32_t>(parts.tokens.size());
    parts.tokens.emplace_back(content);
    parts.added.push_back({.id = id, .content = std::string(content), .special = true});
  }
  parts.decoder.emplace_back(DecodeByteLevel{});
  parts.bos = kBos;
  parts.eos = kEos;
  parts.path = "bytes";
  parts.fingerprint = "bytes";
  return parts;
}

void write_byte_tokenizer(const std::filesystem::path& folder) {
  const BpeTokenizerParts parts = byte_tokenizer_parts();
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  nlohmann::ordered_json vocabulary, added = nlohmann::ordered_json::array();
  for (size_t byte = 0; byte < 256; ++byte) vocabulary[*parts.tokens[byte]] = byte;
  for (const AddedToken& token : parts.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const nlohmann::ordered_json file = {{"version", "1.0"},
                                       {"truncation", nullptr},
                                       {"padding", nullptr},
                                       {"added_tokens", added},
                                       {"normalizer", nullptr},
                                       {"pre_tokenizer", byte_level},
                                       {"post_processor", nullptr},
                                       {"decoder", byte_level},
                                       {"model",
                                        {{"type", "BPE"},
                                         {"dropout", nullptr},
                                         {"unk_token", nullptr},
                                         {"continuing_subword_prefix", nullptr},
                                         {"end_of_word_suffix", nullptr},
                                         {"fuse_unk", false},
                                         {"byte_fallback", false},
                                         {"ignore_merges", false},
                                         {"vocab", vocabulary},
                                         {"merges", nlohmann::ordered_json::array()}}}};
  const nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                         {"bos_token", kSpecial[0]},
                                         {"eos_token", kSpecial[1]},
                                         {"pad_token", kSpecial[2]},
                                         {"clean_up_tokenization_spaces", false}};
  write_file(folder / "tokenizer.json", file.dump(2) + "\n");
  write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace yoke
