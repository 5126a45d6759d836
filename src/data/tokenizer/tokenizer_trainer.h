// Training a tokenizer, through SentencePiece's trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace yoke {

struct TokenizerTraining {
  enum class Kind { bpe, unigram };
  std::vector<std::filesystem::path> files;  ///< plain text
  std::filesystem::path output;              ///< a folder; made when missing
  Kind kind = Kind::bpe;
  int64_t vocabulary_size = 8000;
  bool byte_fallback = true;  ///< spell unknown characters as bytes instead of <unk>
};

/// Trains on the lines of the files and writes tokenizer.model and tokenizer_config.json, which load_tokenizer() and
/// Hugging Face's LlamaTokenizer read. Text is kept as it is: no normalisation, runs of spaces included; digits are
/// tokens of their own. The same files give the same model on every machine. UserError when the text is too small for
/// the vocabulary (the largest legal size is named) or a file can't be read.
void train_tokenizer(const TokenizerTraining& training);

}  // namespace yoke
