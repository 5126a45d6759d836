#include "data/piece.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "data/jsonl.h"
#include "data/text.h"
#include "data/tokens_file.h"

namespace yoke {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kLongestCharacter = 4;
constexpr size_t kReadBytes = size_t{1} << 16;

}  // namespace

PieceReader::PieceReader(const std::vector<std::filesystem::path>& files, Format format, int32_t eos)
    : files_(files), format_(format), eos_(eos) {}

/// Reads until buffer_ holds `bytes` bytes or the file ends.
void PieceReader::fill(size_t bytes) {
  while (!at_end_ && buffer_.size() < bytes) {
    const size_t had = buffer_.size(), wanted = std::min(bytes - had, kReadBytes);
    buffer_.resize(had + wanted);
    const size_t got = std::fread(buffer_.data() + had, 1, wanted, open_.get());
    if (std::ferror(open_.get()) != 0)
      fail_file("{}: can't be read: {}.", files_[state_.file].string(), std::generic_category().message(errno));
    buffer_.resize(had + got);
    at_end_ = got < wanted;
  }
}

/// Opens the next file that has content.
bool PieceReader::open_next() {
  for (; next_file_ < files_.size(); ++empty_files_) {
    const std::filesystem::path& path = files_[next_file_];
    open_.reset(std::fopen(path.c_str(), "rbe"));
    if (!open_) fail_file("{}: can't be opened: {}.", path.string(), std::generic_category().message(errno));
    state_ = {};
    state_.file = next_file_++;
    at_end_ = false;
    buffer_.clear();
    fill(kPieceBytes);
    if (format_ == Format::tokens) {
      if (buffer_.empty()) continue;
      std::error_code error;
      const uint64_t bytes = std::filesystem::file_size(path, error);
      const std::string_view start = std::string_view(buffer_).substr(0, TokensHeader::kMaxBytes);
      const TokensHeader header = parse_tokens_header(start, bytes, eos_, path.string());
      state_.token_bytes = header.token_bytes;
      state_.offset = header.header_bytes;
    } else if (buffer_.starts_with(kByteOrderMark)) {
      state_.offset = kByteOrderMark.size();
    }
    buffer_.erase(0, state_.offset);
    fill(1);
    if (!buffer_.empty()) return true;
  }
  return false;
}

size_t PieceReader::cut_text() {
  for (size_t size = kPieceBytes;; size = std::min(size * 2, kMaxPieceBytes)) {
    fill(size + kLongestCharacter);  // one character more, to know what follows the cut
    if (buffer_.size() <= size) return buffer_.size();
    if (const size_t cut = last_safe_cut(buffer_, size); cut > 0) return cut;
    if (size == kMaxPieceBytes) break;
  }
  log::warn(
      "{}: {} MiB from byte {} on hold no line break at which the text may be cut; it was cut at a character, which "
      "may change the tokens there.",
      files_[state_.file].string(), kMaxPieceBytes >> 20, state_.offset);
  return last_character_cut(buffer_, kMaxPieceBytes);
}

size_t PieceReader::cut_lines() {
  for (size_t size = kPieceBytes;; size = std::min(size * 2, kMaxPieceBytes)) {
    fill(size);
    if (buffer_.size() < size) return buffer_.size();
    if (const size_t newline = buffer_.rfind('\n'); newline != std::string::npos) return newline + 1;
    if (size == kMaxPieceBytes) break;
  }
  fail_file("{}:{}: the line is longer than {} MiB; split it into several documents.", files_[state_.file].string(),
            state_.line, kMaxPieceBytes >> 20);
}

bool PieceReader::next(Piece& piece) {
  if (!open_ && !open_next()) return false;
  size_t cut;
  if (format_ == Format::tokens) {
    fill(kPieceBytes);
    cut = std::min(buffer_.size(), kPieceBytes);
  } else {
    cut = format_ == Format::text ? cut_text() : cut_lines();
  }
  piece = state_;
  piece.bytes = buffer_.substr(0, cut);  // a copy, so that it takes no more memory than it needs
  buffer_.erase(0, cut);
  fill(1);
  piece.ends_file = buffer_.empty();
  state_.offset += cut;
  state_.line += format_ == Format::jsonl ? std::count(piece.bytes.begin(), piece.bytes.end(), '\n') : 0;
  state_.continues = true;
  if (piece.ends_file) open_.reset();
  return true;
}

namespace {

/// Ids of a text that goes on from an earlier piece. What a tokenizer puts before a text that begins (SentencePiece's
/// dummy prefix) must not come into the middle of one, so a line stands before it whose ids are taken off again.
std::vector<int32_t> encode_continuation(std::string_view text, const Tokenizer& tokenizer) {
  constexpr std::string_view kLine = "a\n";
  const std::vector<int32_t> line = tokenizer.encode(kLine);
  std::vector<int32_t> ids = tokenizer.encode(std::string(kLine).append(text));
  if (ids.size() < line.size() || !std::equal(line.begin(), line.end(), ids.begin())) return tokenizer.encode(text);
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(line.size()));
  return ids;
}

template <class T>
void read_tokens(const Piece& piece, const std::string& file, int64_t vocabulary, std::vector<int32_t>& ids) {
  const size_t count = piece.bytes.size() / sizeof(T);
  ids.resize(count);
  for (size_t i = 0; i < count; ++i) {
    T id;
    std::memcpy(&id, piece.bytes.data() + i * sizeof(T), sizeof(T));
    if (id >= static_cast<uint64_t>(vocabulary))
      fail_file(
          "{}: the token at byte {} is {}, but the tokenizer has {} ids; the file was made with another tokenizer or "
          "is damaged.",
          file, piece.offset + i * sizeof(T), id, vocabulary);
    ids[i] = static_cast<int32_t>(id);
  }
}

}  // namespace

EncodedPiece encode_piece(Piece&& piece, const std::string& file, Format format, const Tokenizer& tokenizer,
                          int32_t eos) {
  EncodedPiece out;
  const auto begin_document = [&](const std::vector<int32_t>& ids) {
    if (!ids.empty() && tokenizer.adds_bos() && ids.front() != tokenizer.bos()) out.ids.push_back(*tokenizer.bos());
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  };
  const auto end_document = [&] {
    if (out.ids.empty() || out.ids.back() != eos) out.ids.push_back(eos);
  };
  switch (format) {
    case Format::text:
      check_utf8(piece.bytes, file, piece.offset);
      out.crlf = normalise_newlines(piece.bytes) > 0;
      if (piece.continues) {
        out.ids = encode_continuation(piece.bytes, tokenizer);
      } else {
        begin_document(tokenizer.encode(piece.bytes));
      }
      if (!piece.continues && piece.ends_file && out.ids.empty()) out.empty_documents = 1;
      if (piece.ends_file) end_document();
      break;
    case Format::jsonl:
      for_each_text(piece.bytes, file, piece.line, [&](const std::string& text) {
        const std::vector<int32_t> ids = tokenizer.encode(text);
        if (ids.empty()) {
          ++out.empty_documents;
          return;
        }
        begin_document(ids);
        end_document();
      });
      break;
    case Format::tokens:
      if (piece.token_bytes == 2) {
        read_tokens<uint16_t>(piece, file, tokenizer.vocabulary_size(), out.ids);
      } else {
        read_tokens<uint32_t>(piece, file, tokenizer.vocabulary_size(), out.ids);
      }
      if (piece.ends_file) end_document();
      break;
  }
  return out;
}

}  // namespace yoke
