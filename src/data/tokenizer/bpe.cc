#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// Orders a max-heap so that its top is the lowest rank, and of equal ranks the leftmost.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

constexpr size_t kMaxWordBytes = size_t{1} << 30;

}  // namespace

WordCache::WordCache(size_t tokens)
    : count_(std::bit_ceil(std::clamp<size_t>(tokens, 64, kMaxSlots))), slots_(std::make_unique<Slot[]>(count_)) {}

bool WordCache::find(std::string_view word, uint64_t hash, std::vector<int32_t>& ids) const {
  Slot& slot = slots_[hash & (count_ - 1)];
  if (word.size() > kMaxBytes || slot.busy.test_and_set(std::memory_order_acquire)) return false;
  const bool found = slot.bytes == word.size() && std::memcmp(slot.word.data(), word.data(), word.size()) == 0;
  if (found) ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
  slot.busy.clear(std::memory_order_release);
  return found;
}

void WordCache::insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
  Slot& slot = slots_[hash & (count_ - 1)];
  if (word.size() > kMaxBytes || ids.size() > kMaxIds || slot.busy.test_and_set(std::memory_order_acquire)) return;
  slot.bytes = static_cast<uint8_t>(word.size());
  slot.count = static_cast<uint8_t>(ids.size());
  std::copy(word.begin(), word.end(), slot.word.begin());
  std::copy(ids.begin(), ids.end(), slot.ids.begin());
  slot.busy.clear(std::memory_order_release);
}

Bpe::Bpe(BpeParts parts) : parts_(std::move(parts)), cache_(parts_.ids.size()) {
  byte_ids_.fill(-1);
  for (int byte = 0; parts_.raw_bytes && byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto found = parts_.ids.find(std::string_view(&c, 1));
    if (found != parts_.ids.end()) byte_ids_[static_cast<size_t>(byte)] = found->second;
  }
  // A pair that is listed twice counts with its last rank, as in Hugging Face's library.
  for (const auto& merge : parts_.merges) merges_[pair_key(merge.left, merge.right)] = {merge.rank, merge.result};
  parts_.merges = {};
  if (parts_.raw_bytes && !parts_.ignore_merges) parts_.ids = {};
  only_bytes_ = parts_.raw_bytes && !parts_.ignore_merges && merges_.size() == 0 &&
                std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (only_bytes_) {
    for (const char byte : word) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    return;
  }
  const uint64_t hash = StringHash{}(word);
  if (cache_.find(word, hash, ids)) return;
  if (word.size() > kMaxWordBytes) {
    fail_file("A word of {} bytes can't be tokenized; at most {} are legal.", word.size(), kMaxWordBytes);
  }
  const size_t before = ids.size();
  const auto whole = parts_.ignore_merges ? parts_.ids.find(word) : parts_.ids.end();
  if (whole != parts_.ids.end()) {
    ids.push_back(whole->second);
  } else {
    start_symbols(word, scratch);
    merge(scratch);
    for (const auto& symbol : scratch.symbols) {
      if (symbol.id >= 0) ids.push_back(symbol.id);
    }
  }
  cache_.insert(word, hash, std::span(ids).subspan(before));
}

void Bpe::start_symbols(std::string_view word, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  const auto add = [&](int32_t id) {
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  };
  bool pending_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const size_t length = parts_.raw_bytes ? 1 : utf8_length(word[at]);
    const std::string_view character = word.substr(at, length);
    at += length;
    int32_t id = -1;
    if (parts_.raw_bytes) {
      id = byte_ids_[static_cast<uint8_t>(character[0])];
    } else if (const auto found = parts_.ids.find(character); found != parts_.ids.end()) {
      id = found->second;
    }
    if (id >= 0) {
      if (std::exchange(pending_unknown, false)) add(*parts_.unknown);
      add(id);
    } else if (parts_.byte_fallback) {
      const std::string_view spelled =
          parts_.raw_bytes ? std::string_view(byte_alphabet()[static_cast<uint8_t>(character[0])]) : character;
      for (const char byte : spelled) add((*parts_.byte_fallback)[static_cast<uint8_t>(byte)]);
    } else if (parts_.unknown) {
      if (pending_unknown && !parts_.fuse_unknown) add(*parts_.unknown);
      pending_unknown = true;
    }
  }
  if (pending_unknown) add(*parts_.unknown);
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::push_candidate(Scratch& scratch, int32_t at) const {
  const auto& left = scratch.symbols[static_cast<size_t>(at)];
  if (left.next < 0) return;
  const MergeTo* merge = merges_.find(pair_key(left.id, scratch.symbols[static_cast<size_t>(left.next)].id));
  if (merge == nullptr) return;
  scratch.queue.push_back({merge->rank, at, merge->result});
  std::push_heap(scratch.queue.begin(), scratch.queue.end(), later);
}

void Bpe::merge(Scratch& scratch) const {
  auto& [symbols, queue] = scratch;
  queue.clear();
  for (size_t at = 0; at + 1 < symbols.size(); ++at) push_candidate(scratch, static_cast<int32_t>(at));
  while (!queue.empty()) {
    const auto best = queue.front();
    std::pop_heap(queue.begin(), queue.end(), later);
    queue.pop_back();
    auto& left = symbols[static_cast<size_t>(best.at)];
    if (left.id < 0 || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    // One of the two may have been merged since: then the pair may no longer give this result.
    const MergeTo* current = merges_.find(pair_key(left.id, right.id));
    if (current == nullptr || current->result != best.result) continue;
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.at;
    if (left.previous >= 0) push_candidate(scratch, left.previous);
    push_candidate(scratch, best.at);
  }
}

}  // namespace yoke
