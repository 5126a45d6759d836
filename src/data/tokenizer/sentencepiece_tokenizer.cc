#include "data/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/sentencepiece_check.h"
#include "data/tokenizer/special_ids.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

using sentencepiece::SentencePieceProcessor;

std::optional<int32_t> legal(int id) { return id < 0 ? std::nullopt : std::optional<int32_t>(id); }

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view content, std::filesystem::path path) : path_(std::move(path)) {
    by_word_ = check_sentencepiece_model(content, path_);
    const auto status = model_.LoadFromSerializedProto(content);
    if (!status.ok()) fail_file("{}: is no SentencePiece model: {}.", path_.string(), status.error_message());
    pieces_ = model_.GetPieceSize();
    vocabulary_size_ = pieces_;
    cache_.emplace(static_cast<size_t>(pieces_));
    for (int32_t id = 0; id < pieces_; ++id) {
      if (model_.IsUnused(id)) continue;
      ids_.emplace(model_.IdToPiece(id), id);
      if (model_.IsControl(id) || model_.IsUnknown(id))
        add({.id = id, .content = model_.IdToPiece(id), .special = true});
    }
    const auto folder = path_.parent_path();
    for (AddedToken& token : find_added_tokens(folder)) add_from_sidecar(std::move(token));
    std::vector<AddedToken> tokens;
    for (const auto& [id, token] : literal_) tokens.push_back(token);
    std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    finder_ = AddedTokenFinder(tokens);

    const SpecialIds special = find_special_ids(
        folder, [&](std::string_view text) { return id_of(text); }, vocabulary_size_);
    bos_ = special.bos ? special.bos : legal(model_.bos_id());
    adds_bos_ = bos_ && special.adds_bos.value_or(true);  // as Llama's and Mistral's do
    eos_ = special.eos ? special.eos : legal(model_.eos_id());
    Hasher hasher;
    hasher.update(content);
    for (const AddedToken& token : tokens) hasher.update(fmt::format("\n{} {}", token.id, token.content));
    fingerprint_ = fmt::format("sentencepiece {} bos {} eos {}", hasher.hex(), bos_.value_or(-1), eos_.value_or(-1));
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    std::vector<int> piece_ids;
    std::string valid;
    for (const auto& part : finder_.split(as_utf8(text, valid))) {
      if (part.id) {
        ids.push_back(*part.id);
        continue;
      }
      if (!by_word_) {
        encode_piece(part.text, piece_ids, ids);
        continue;
      }
      const size_t last = part.text.find_last_not_of(' ');
      for (size_t begin = 0, end = 0; begin < part.text.size(); begin = end) {
        end = word_end(part.text, begin, last);
        // The space in front is the one that the library puts in front of every text.
        const size_t first = begin == 0 ? 0 : begin + 1;
        encode_piece(part.text.substr(first, end - first), piece_ids, ids);
      }
    }
    return ids;
  }

  /// Special tokens are written out; the text between them is decoded by itself, so that encode() gives it back.
  /// Unknown characters come out as the library's replacement for them.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    std::vector<int> run;
    const auto flush = [&] {
      std::string decoded;
      const auto status = run.empty() ? sentencepiece::util::Status() : model_.Decode(run, &decoded);
      if (!status.ok()) fail_file("{}: ids can't be decoded: {}.", path_.string(), status.error_message());
      text += decoded;
      run.clear();
    };
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocabulary_size_) {
        fail_usage("{}: {} is no token id; ids are 0 to {}.", path_.string(), id, vocabulary_size_ - 1);
      }
      const auto token = literal_.find(id);
      const bool skipped = token != literal_.end() && token->second.special && skip_special;
      if (id < pieces_ && (token == literal_.end() || model_.IsUnknown(id))) {
        if (!skipped) run.push_back(id);
      } else if (token != literal_.end() && !skipped) {
        flush();
        text += token->second.content;
      }
    }
    flush();
    return text;
  }

  int64_t vocabulary_size() const override { return vocabulary_size_; }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eos() const override { return eos_; }
  bool adds_bos() const override { return adds_bos_; }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  std::string fingerprint() const override { return fingerprint_; }

 private:
  /// Where the word that starts at `begin` ends: in front of a space behind something else, unless only spaces follow:
  /// `last` is the last character that isn't one.
  static size_t word_end(std::string_view text, size_t begin, size_t last) {
    for (size_t at = text.find(' ', text.find_first_not_of(' ', begin)); at < last; at = text.find(' ', at)) {
      if (!text.substr(0, at).ends_with("\xe2\x96\x81")) return at;
      at = std::min(text.find_first_not_of(' ', at), text.size());
    }
    return text.size();
  }

  /// Appends the ids that the library gives `text`; words come again and again, and the library is slow.
  void encode_piece(std::string_view text, std::vector<int>& piece_ids, std::vector<int32_t>& ids) const {
    const uint64_t hash = StringHash{}(text);
    if (cache_->find(text, hash, ids)) return;
    const auto status = model_.Encode(text, &piece_ids);
    if (!status.ok()) fail_file("{}: a text can't be encoded: {}.", path_.string(), status.error_message());
    ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
    cache_->insert(text, hash, std::span(piece_ids));
  }

  void add(AddedToken token) {
    if (token.content.empty()) fail_file("{}: the special piece {} has no text.", path_.string(), token.id);
    const int32_t id = token.id;
    literal_.insert_or_assign(id, std::move(token));
  }

  void add_from_sidecar(AddedToken token) {
    const auto known = ids_.find(token.content);
    if (known != ids_.end() && known->second != token.id) {
      fail_file("{}: the files beside it give '{}' the id {}, but it has the id {}.", path_.string(), token.content,
                token.id, known->second);
    }
    if (known == ids_.end()) {
      if (token.id != vocabulary_size_) {
        fail_file("{}: the files beside it give '{}' the id {}; the next free id is {}.", path_.string(), token.content,
                  token.id, vocabulary_size_);
      }
      ids_.emplace(token.content, token.id);
      ++vocabulary_size_;
    }
    add(std::move(token));
  }

  std::filesystem::path path_;
  SentencePieceProcessor model_;
  bool by_word_ = false;  ///< ids can be found word by word
  mutable std::optional<WordCache> cache_;
  int32_t pieces_ = 0;
  int64_t vocabulary_size_ = 0;
  TokenIds ids_;
  std::unordered_map<int32_t, AddedToken> literal_;  ///< tokens that stand for themselves in text
  AddedTokenFinder finder_;
  std::optional<int32_t> bos_, eos_;
  bool adds_bos_ = false;
  std::string fingerprint_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view content, const std::filesystem::path& path) {
  return std::make_unique<SentencePieceTokenizer>(content, path);
}

}  // namespace yoke
