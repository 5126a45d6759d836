// Hugging Face's tokenizer.json: byte-pair encoding with the normalisers, pre-tokenizers and decoders that the LLaMA,
// Mistral, Qwen, DeepSeek and GPT-2 families use. What would change ids and isn't supported is refused by name.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "data/tokenizer/bpe_tokenizer.h"

namespace yoke {

/// The parts that `json`, read from `path`, describes, without begin- and end-of-sequence ids and fingerprint.
BpeTokenizerParts read_tokenizer_json(const nlohmann::json& json, const std::filesystem::path& path);

}  // namespace yoke
