// A corpus as token ids on disk: memory-mapped, any number of documents and tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace yoke {

/// What reading a corpus met. Kept with the tokens, so that it is known when they come from the cache.
struct CorpusCounts {
  int64_t files = 0;
  int64_t empty_files = 0;
  int64_t empty_documents = 0;  ///< documents without a token, left out
  int64_t crlf_files = 0;       ///< files in which \r\n became \n
};

/// Two files. `<base>.tokens` holds nothing but the ids, 2 bytes each when the vocabulary has at most 65536 ids and
/// else
/// 4. `<base>.index` holds a header, for every document the number of tokens up to and with its last one (8 bytes), and
/// a trailer with the counts and an XXH3-128 of all that precedes it. The index is written last: a store exists when
/// its index does. Little-endian. Every document has at least one token and one end-of-sequence token, which is its
/// last.
class TokenStore {
 public:
  static constexpr uint32_t kVersion = 1;

  /// UserError (bad_file) that says what is wrong when the files are missing, cut off, damaged or of another version.
  explicit TokenStore(const std::filesystem::path& base);

  int64_t documents() const { return documents_; }
  int64_t tokens() const { return documents_ == 0 ? 0 : end(documents_ - 1); }
  int64_t vocabulary() const { return vocabulary_; }
  int32_t eos() const { return eos_; }
  const CorpusCounts& counts() const { return counts_; }

  /// Place of a document's first token, and of the one behind its last.
  int64_t begin(int64_t document) const { return document == 0 ? 0 : end(document - 1); }
  int64_t end(int64_t document) const { return static_cast<int64_t>(ends_[document]); }
  int64_t length(int64_t document) const { return end(document) - begin(document); }

  /// Copies tokens [first, first + out.size()). UserError (bad_file) when one of them isn't below vocabulary().
  void read(int64_t first, std::span<int32_t> out) const;

 private:
  std::filesystem::path base_;
  MappedFile index_, tokens_;
  uint32_t token_bytes_ = 0;
  int64_t vocabulary_ = 0;
  int32_t eos_ = 0;
  int64_t documents_ = 0;
  const uint64_t* ends_ = nullptr;
  CorpusCounts counts_;
};

/// Writes a TokenStore front to back in constant memory.
class TokenStoreWriter {
 public:
  TokenStoreWriter(const std::filesystem::path& base, int64_t vocabulary, int32_t eos);

  /// Appends ids, each below the vocabulary. An `eos` ends the document; one that ends nothing is left out.
  void append(std::span<const int32_t> ids);
  /// All documents must have ended. Both files get their names, the index last.
  void commit(const CorpusCounts& counts);

  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

 private:
  void write_index(const void* data, size_t bytes);

  std::filesystem::path base_;
  FileWriter token_file_, index_file_;
  Hasher hasher_;
  int64_t vocabulary_;
  int32_t eos_;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
  int64_t document_begin_ = 0;
  std::vector<uint8_t> encoded_;  ///< of one append()
};

}  // namespace yoke
