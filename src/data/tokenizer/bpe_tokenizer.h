// A tokenizer made of a normaliser, a pre-tokenizer, byte-pair merges, added tokens and a decoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace yoke {

struct BpeTokenizerParts {
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  BpeParts bpe;
  std::vector<AddedToken> added;
  std::vector<DecoderStep> decoder;
  /// Text of every id as the file has it; nothing where an id is not used. Added tokens included.
  std::vector<std::optional<std::string>> tokens;
  std::optional<int32_t> bos, eos;
  bool adds_bos = false;  ///< counts only where there is a bos
  std::string fingerprint;
  /// Named in messages.
  std::filesystem::path path;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerParts parts);

}  // namespace yoke
