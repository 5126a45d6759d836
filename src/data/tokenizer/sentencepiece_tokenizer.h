// SentencePiece models: Llama 2's and Mistral's `tokenizer.model`, and those that `yoke tokenizer train` makes.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace yoke {

/// The tokenizer of the serialized model `content`, which was read from `path`. Begin, end and added tokens come from
/// the files beside it where these say so. UserError (bad_file) when it is malformed.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view content, const std::filesystem::path& path);

}  // namespace yoke
