#include "data/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTokenizerParts parts)
      : carries_any_bytes_(parts.bpe.raw_bytes && parts.normalizer.empty() && parts.pre_tokenizer.empty()),
        normalizer_(std::move(parts.normalizer)),
        pre_tokenizer_(std::move(parts.pre_tokenizer)),
        bpe_(std::move(parts.bpe)),
        decoder_(std::move(parts.decoder)),
        tokens_(std::move(parts.tokens)),
        bos_(parts.bos),
        eos_(parts.eos),
        adds_bos_(parts.adds_bos && parts.bos),
        fingerprint_(std::move(parts.fingerprint)),
        path_(std::move(parts.path)) {
    // Where nothing looks at characters, any bytes pass as they are.
    carries_any_bytes_ =
        carries_any_bytes_ && std::none_of(parts.added.begin(), parts.added.end(), [](const auto& token) {
          return token.lstrip || token.rstrip || token.single_word;
        });
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (tokens_[id]) ids_.emplace(*tokens_[id], static_cast<int32_t>(id));
    }
    // Special tokens come first: of tokens that normalise to the same text the first counts.
    std::stable_partition(parts.added.begin(), parts.added.end(), [](const auto& token) { return token.special; });
    std::vector<AddedToken> raw, normalized;
    for (AddedToken& token : parts.added) {
      if (token.special) special_.insert(token.id);
      if (!token.normalized) {
        raw.push_back(std::move(token));
        continue;
      }
      std::string storage;
      token.content = std::string(normalizer_.apply(token.content, storage));
      if (token.content.empty()) {
        fail_file("{}: the normalizer makes nothing of the added token with id {}.", path_.string(), token.id);
      }
      tokens_[static_cast<size_t>(token.id)] = token.content;  // decoded as it is found
      normalized.push_back(std::move(token));
    }
    raw_tokens_ = AddedTokenFinder(std::move(raw));
    normalized_tokens_ = AddedTokenFinder(std::move(normalized));
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 4 + 8);
    Bpe::Scratch scratch;
    std::string valid, normal;
    if (!carries_any_bytes_) text = as_utf8(text, valid);
    for (const auto& raw : raw_tokens_.split(text)) {
      if (raw.id) {
        ids.push_back(*raw.id);
        continue;
      }
      const std::string_view normalized = normalizer_.apply(raw.text, normal);
      bool first = raw.text.data() == text.data();
      for (const auto& part : normalized_tokens_.split(normalized)) {
        if (part.id) {
          ids.push_back(*part.id);
        } else {
          encode_words(part.text, first, scratch, ids);
        }
        first = false;
      }
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::vector<std::string> texts;
    texts.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocabulary_size()) {
        fail_usage("{}: {} is no token id; ids are 0 to {}.", path_.string(), id, vocabulary_size() - 1);
      }
      if (skip_special && special_.contains(id)) continue;
      if (const auto& token = tokens_[static_cast<size_t>(id)]) texts.push_back(*token);
    }
    return decode_tokens(decoder_, std::move(texts));
  }

  int64_t vocabulary_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eos() const override { return eos_; }
  bool adds_bos() const override { return adds_bos_; }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  std::string fingerprint() const override { return fingerprint_; }

 private:
  void encode_words(std::string_view text, bool first, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const {
    Words words;
    words.text = text;
    words.spans = {{0, text.size()}};
    words.starts_input = first;
    pre_tokenize(pre_tokenizer_, words);
    for (const auto& word : words.spans) {
      bpe_.encode(words.text.substr(word.begin, word.end - word.begin), scratch, ids);
    }
  }

  bool carries_any_bytes_;
  Normalizer normalizer_;
  std::vector<PreTokenizerStep> pre_tokenizer_;
  Bpe bpe_;
  std::vector<DecoderStep> decoder_;
  std::vector<std::optional<std::string>> tokens_;
  TokenIds ids_;
  std::unordered_set<int32_t> special_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
  std::optional<int32_t> bos_, eos_;
  bool adds_bos_;
  std::string fingerprint_;
  std::filesystem::path path_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace yoke
