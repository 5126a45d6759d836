#include "data/token_cache.h"

#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <exception>
#include <set>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "data/piece.h"

namespace yoke {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxBatch = 4096;  ///< pieces that are encoded side by side

using Encoded = std::vector<EncodedPiece>;

/// Encodes every piece; results are in the order of the pieces. Of several faults the first piece's is thrown.
Encoded encode_all(std::vector<Piece>& pieces, const std::vector<fs::path>& files, Format format,
                   const Tokenizer& tokenizer, int threads) {
  Encoded encoded(pieces.size());
  std::vector<std::exception_ptr> faults(pieces.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next++) < pieces.size();) {
      try {
        const std::string file = files[pieces[i].file].string();
        encoded[i] = encode_piece(std::move(pieces[i]), file, format, tokenizer, *tokenizer.eos());
      } catch (...) {
        faults[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t t = 1; t < std::min<size_t>(threads, pieces.size()); ++t) others.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
  return encoded;
}

void build(const fs::path& base, const std::vector<fs::path>& files, Format format, const Tokenizer& tokenizer,
           int threads) {
  TokenStoreWriter writer(base, tokenizer.vocabulary_size(), *tokenizer.eos());
  PieceReader reader(files, format, *tokenizer.eos());
  CorpusCounts counts;
  std::set<size_t> crlf_files;
  std::vector<Piece> pieces;
  for (bool more = true; more;) {
    pieces.clear();
    size_t bytes = 0;
    while (bytes < kPieceBytes * static_cast<size_t>(threads) && pieces.size() < kMaxBatch) {
      Piece piece;
      more = reader.next(piece);
      if (!more) break;
      bytes += piece.bytes.size();
      pieces.push_back(std::move(piece));
    }
    const Encoded encoded = encode_all(pieces, files, format, tokenizer, threads);
    for (size_t i = 0; i < encoded.size(); ++i) {
      writer.append(encoded[i].ids);
      counts.empty_documents += encoded[i].empty_documents;
      if (encoded[i].crlf) crlf_files.insert(pieces[i].file);
    }
  }
  counts.files = static_cast<int64_t>(files.size());
  counts.empty_files = reader.empty_files();
  counts.crlf_files = static_cast<int64_t>(crlf_files.size());
  if (writer.documents() == 0)
    fail_file("data: the corpus is empty: {} files, {} of them empty, {} documents without tokens.", counts.files,
              counts.empty_files, counts.empty_documents);
  writer.commit(counts);
  if (counts.crlf_files > 0)
    log::info("{} of {} files end their lines with CR LF; they were read as LF.", counts.crlf_files, counts.files);
  log::info("tokenised {} files: {} documents, {} tokens", counts.files, writer.documents(), writer.tokens());
}

}  // namespace

std::string cache_key(const std::vector<fs::path>& files, Format format, const Tokenizer& tokenizer) {
  Hasher hasher;
  const auto add = [&](std::string_view part) { hasher.update(fmt::format("{}:{}\n", part.size(), part)); };
  add(fmt::format("store {} piece {}", TokenStore::kVersion, kPieceBytes));
  add(tokenizer.fingerprint());
  add(fmt::format("eos {} bos {}", tokenizer.eos().value_or(-1), tokenizer.adds_bos() ? *tokenizer.bos() : -1));
  add(name_of(format));
  for (const fs::path& file : files) {
    struct stat info {};
    if (::stat(file.c_str(), &info) != 0)
      fail_file("{}: can't be opened: {}.", file.string(), std::generic_category().message(errno));
    add(fs::absolute(file).lexically_normal().string());
    add(fmt::format("{} {}.{}", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec));
  }
  return hasher.hex();
}

std::shared_ptr<const TokenStore> open_corpus(const std::vector<fs::path>& files, Format format,
                                              const Tokenizer& tokenizer, const fs::path& folder, int threads) {
  if (!tokenizer.eos())
    fail_file("the tokenizer names no end-of-sequence token, which documents must end with; use one that does.");
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_file("{}: the folder of the token cache can't be made: {}.", folder.string(), error.message());
  const fs::path base = folder / cache_key(files, format, tokenizer);
  if (fs::exists(base.string() + ".index", error)) {
    try {
      return std::make_shared<const TokenStore>(base);
    } catch (const UserError& fault) {
      log::warn("the token cache can't be used and is built again: {}", fault.what());
    }
  }
  build(base, files, format, tokenizer, threads);
  return std::make_shared<const TokenStore>(base);
}

}  // namespace yoke
