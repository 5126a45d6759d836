// What the SentencePiece library doesn't check before it trusts a model file.
#pragma once

#include <filesystem>
#include <string_view>

namespace yoke {

/// UserError (bad_file) unless `content` is a serialized model whose normalisation table stays within its bounds.
void check_sentencepiece_model(std::string_view content, const std::filesystem::path& path);

}  // namespace yoke
