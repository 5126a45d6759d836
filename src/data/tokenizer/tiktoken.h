// Byte-pair models that are kept as ranks of byte strings: Meta's Llama 3 `tokenizer.model` and Mistral's tekken.json.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "data/tokenizer/bpe_tokenizer.h"

namespace yoke {

/// Whether `content` begins like a file of ranks: base64, a space, a number.
bool looks_like_ranks(std::string_view content);

/// The parts of Llama 3's tokenizer, with its begin and end tokens; without fingerprint. Other files of ranks don't
/// carry their regular expression and special tokens and are refused.
BpeTokenizerParts read_llama3_ranks(std::string_view content, const std::filesystem::path& path);

/// The parts of a tekken.json: special tokens have the first ids.
BpeTokenizerParts read_tekken(const nlohmann::json& json, const std::filesystem::path& path);

}  // namespace yoke
