#include "data/token_store.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace yoke {

static_assert(std::endian::native == std::endian::little, "token stores are mapped as they are");

namespace {

constexpr std::array<char, 8> kMagic = {'y', 'o', 'k', 'e', 'i', 'd', 'x', '\0'};

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = TokenStore::kVersion;
  uint32_t token_bytes = 0;
  int64_t vocabulary = 0;
  int64_t eos = 0;
};
static_assert(sizeof(Header) == 32);

struct Trailer {
  int64_t documents = 0;
  CorpusCounts counts;
  std::array<char, 32> hash{};  ///< of everything before it
};
static_assert(sizeof(Trailer) == 72);

std::filesystem::path tokens_path(const std::filesystem::path& base) { return base.string() + ".tokens"; }
std::filesystem::path index_path(const std::filesystem::path& base) { return base.string() + ".index"; }

uint32_t token_bytes_for(int64_t vocabulary) { return vocabulary <= 65536 ? 2 : 4; }

}  // namespace

TokenStore::TokenStore(const std::filesystem::path& base)
    : base_(base), index_(index_path(base)), tokens_(tokens_path(base)) {
  const std::string file = index_path(base).string();
  if (index_.size() < sizeof(Header) + sizeof(Trailer)) fail_file("{}: is cut off.", file);
  Header header;
  Trailer trailer;
  const size_t hashed = index_.size() - sizeof trailer.hash;
  std::memcpy(&header, index_.data(), sizeof header);
  std::memcpy(&trailer, index_.data() + index_.size() - sizeof trailer, sizeof trailer);
  if (header.magic != kMagic) fail_file("{}: is not a token index.", file);
  if (header.version != kVersion)
    fail_file("{}: is of version {}; this program writes version {}.", file, header.version, kVersion);
  if (hash_hex(index_.data(), hashed) != std::string_view(trailer.hash.data(), trailer.hash.size()))
    fail_file("{}: its hash does not match; it is damaged.", file);
  const size_t ends_bytes = index_.size() - sizeof header - sizeof trailer;
  token_bytes_ = header.token_bytes;
  vocabulary_ = header.vocabulary;
  eos_ = static_cast<int32_t>(header.eos);
  documents_ = trailer.documents;
  counts_ = trailer.counts;
  if (vocabulary_ < 1 || vocabulary_ > INT32_MAX || token_bytes_ != token_bytes_for(vocabulary_) || header.eos < 0 ||
      header.eos >= vocabulary_ || ends_bytes % sizeof(uint64_t) != 0 ||
      ends_bytes / sizeof(uint64_t) != static_cast<uint64_t>(documents_))
    fail_file("{}: contradicts itself; it is damaged.", file);
  ends_ = reinterpret_cast<const uint64_t*>(index_.data() + sizeof header);
  uint64_t previous = 0;
  for (int64_t i = 0; i < documents_; ++i) {
    if (ends_[i] < previous + 2) fail_file("{}: document {} has no tokens; it is damaged.", file, i);
    previous = ends_[i];
  }
  if (tokens_.size() % token_bytes_ != 0 || tokens_.size() / token_bytes_ != previous)
    fail_file("{}: is {} bytes long where its index says {} tokens of {} bytes.", tokens_path(base).string(),
              tokens_.size(), previous, token_bytes_);
}

void TokenStore::read(int64_t first, std::span<int32_t> out) const {
  YOKE_ASSERT(first >= 0 && first + static_cast<int64_t>(out.size()) <= tokens(), "tokens {} + {} of {}", first,
              out.size(), tokens());
  uint32_t largest = 0;
  const auto copy = [&]<class T>(const T* from) {
    for (size_t i = 0; i < out.size(); ++i) {
      const uint32_t id = from[i];
      largest = std::max(largest, id);
      out[i] = static_cast<int32_t>(id);
    }
  };
  if (token_bytes_ == 2) {
    copy(reinterpret_cast<const uint16_t*>(tokens_.data()) + first);
  } else {
    copy(reinterpret_cast<const uint32_t*>(tokens_.data()) + first);
  }
  // What was mapped stays in the page cache, not in this process: it would grow to the size of the corpus.
  constexpr size_t kAround = size_t{64} << 10;  // the system maps neighbours too
  const size_t begin = static_cast<size_t>(first) * token_bytes_ / kAround * kAround;
  tokens_.release(begin, out.size_bytes() / sizeof(int32_t) * token_bytes_ + 2 * kAround);
  if (static_cast<int64_t>(largest) >= vocabulary_)
    fail_file(
        "{}: holds the id {} where the tokenizer has {} ids; the cache is damaged. Delete it; it will be built again.",
        tokens_path(base_).string(), largest, vocabulary_);
}

TokenStoreWriter::TokenStoreWriter(const std::filesystem::path& base, int64_t vocabulary, int32_t eos)
    : base_(base), token_file_(tokens_path(base)), index_file_(index_path(base)), vocabulary_(vocabulary), eos_(eos) {
  Header header;
  header.token_bytes = token_bytes_for(vocabulary);
  header.vocabulary = vocabulary;
  header.eos = eos;
  write_index(&header, sizeof header);
}

void TokenStoreWriter::write_index(const void* data, size_t bytes) {
  hasher_.update(data, bytes);
  index_file_.write(data, bytes);
}

void TokenStoreWriter::append(std::span<const int32_t> ids) {
  const size_t token_bytes = token_bytes_for(vocabulary_);
  encoded_.resize(ids.size() * token_bytes);
  size_t used = 0;
  for (const int32_t id : ids) {
    YOKE_ASSERT(id >= 0 && id < vocabulary_, "id {} of {}", id, vocabulary_);
    if (id == eos_ && tokens_ == document_begin_) continue;
    std::memcpy(encoded_.data() + used, &id, token_bytes);
    used += token_bytes;
    ++tokens_;
    if (id != eos_) continue;
    ++documents_;
    document_begin_ = tokens_;
    const auto end = static_cast<uint64_t>(tokens_);
    write_index(&end, sizeof end);
  }
  token_file_.write(encoded_.data(), used);
}

void TokenStoreWriter::commit(const CorpusCounts& counts) {
  YOKE_ASSERT(tokens_ == document_begin_, "the last document has not ended");
  Trailer trailer;
  trailer.documents = documents_;
  trailer.counts = counts;
  write_index(&trailer, sizeof trailer - sizeof trailer.hash);
  const std::string hash = hasher_.hex();
  index_file_.write(hash.data(), hash.size());
  token_file_.commit();
  index_file_.commit();
  sync_folder(std::filesystem::absolute(base_).parent_path());
}

}  // namespace yoke
