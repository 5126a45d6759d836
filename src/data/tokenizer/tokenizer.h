// Text to token ids and back. One interface over byte-level BPE (tokenizer.json), SentencePiece, tiktoken ranks, bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  /// Ids of `text`, without begin- or end-of-sequence tokens. Special tokens that stand literally in the text are
  /// recognised, as Hugging Face's `tokenizers` does. Any bytes are legal; bytes that are not UTF-8 are replaced by
  /// U+FFFD where the model can't carry them. Thread-safe.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Text of `ids`; special tokens are left out when `skip_special`. An id out of range is a UserError.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;
  /// Number of ids, added tokens included: every id of encode() is below it.
  virtual int64_t vocabulary_size() const = 0;
  /// Begin- and end-of-sequence ids, where the tokenizer has them.
  virtual std::optional<int32_t> bos() const = 0;
  virtual std::optional<int32_t> eos() const = 0;
  /// Documents and prompts begin with bos(): models of this tokenizer were trained so.
  virtual bool adds_bos() const = 0;
  /// Id of a token by its literal text ("<|eot_id|>"), where it exists.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  /// Names everything that decides ids; part of the token cache's key.
  virtual std::string fingerprint() const = 0;
};

/// `bytes`, a folder that holds tokenizer files, or such a file (tokenizer.json, a SentencePiece or a tiktoken
/// `tokenizer.model`, tekken.json). UserError (bad_file) when it is missing, malformed or of a kind that is not
/// supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

/// Writes the tokenizer `bytes` into a folder as a tokenizer.json and tokenizer_config.json that give the same ids, in
/// Hugging Face's libraries too.
void write_byte_tokenizer(const std::filesystem::path& folder);

/// Files that belong to a tokenizer in a model folder and are carried along on export.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& folder);

}  // namespace yoke
