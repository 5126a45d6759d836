// A corpus as a sequence of pieces of bounded size, and a piece as token ids.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/options.h"
#include "data/tokenizer/tokenizer.h"

namespace yoke {

/// A part of one file: text up to a place where it may be cut, whole lines of JSONL, or token ids.
struct Piece {
  size_t file = 0;           ///< index into the list of files
  uint64_t offset = 0;       ///< of the first byte within the file
  int64_t line = 1;          ///< number of the first line, JSONL only
  uint32_t token_bytes = 0;  ///< format tokens only
  std::string bytes;
  bool continues = false;  ///< its document began in an earlier piece (text only)
  bool ends_file = false;
};

/// Memory that a piece may take. A text whose next safe place to cut is farther away than kMaxPieceBytes is cut at a
/// character, with a warning; a JSONL line that is longer is a UserError.
inline constexpr size_t kPieceBytes = size_t{1} << 20;
inline constexpr size_t kMaxPieceBytes = size_t{64} << 20;

/// Reads files one after the other, front to back, each byte once. Where the pieces are cut depends on the files alone.
class PieceReader {
 public:
  /// `eos` is only compared with what token files say. Keeps a reference to `files`.
  PieceReader(const std::vector<std::filesystem::path>& files, Format format, int32_t eos);
  /// The next piece, or false at the end. Files without content are skipped and counted.
  bool next(Piece& piece);

  int64_t empty_files() const { return empty_files_; }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  bool open_next();
  void fill(size_t bytes);
  size_t cut_text();
  size_t cut_lines();

  const std::vector<std::filesystem::path>& files_;
  Format format_;
  int32_t eos_;
  size_t next_file_ = 0;
  std::unique_ptr<std::FILE, Closer> open_;
  bool at_end_ = false;  ///< nothing of the open file is left to read into buffer_
  std::string buffer_;
  Piece state_;  ///< everything of the next piece but its bytes
  int64_t empty_files_ = 0;
};

/// A piece's token ids. Every document that ends in it ends with `eos`, and where the tokenizer adds a
/// begin-of-sequence token every document that begins in it begins with that; neither comes twice where the text has
/// it.
struct EncodedPiece {
  std::vector<int32_t> ids;
  int64_t empty_documents = 0;
  bool crlf = false;  ///< \r\n became \n (text only)
};

/// UserError (bad_file) that names `file` and the place for anything that isn't legal in `format`.
EncodedPiece encode_piece(Piece&& piece, const std::string& file, Format format, const Tokenizer& tokenizer,
                          int32_t eos);

}  // namespace yoke
