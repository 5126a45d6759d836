// Facts about a SentencePiece model file, and what the library doesn't check before it trusts one.
#pragma once

#include <filesystem>
#include <string_view>

namespace yoke {

/// UserError (bad_file) unless `content` is a serialized model whose normalisation table stays within its bounds.
/// Returns whether its ids can be found word by word: it leaves characters as they are, puts one space in front of the
/// text, and has no piece with a space behind another character, so that none reaches across the beginning of a word.
/// For unigram models that is also more exact: over a long text the library's sums lose the small differences.
bool check_sentencepiece_model(std::string_view content, const std::filesystem::path& path);

}  // namespace yoke
