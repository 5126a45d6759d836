// Byte-pair encoding of one word: symbols are merged pair by pair, lowest rank first, the leftmost of equals first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/flat_map.h"

namespace yoke {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

/// A word cache of bounded size that never waits: a slot in use by another thread counts as a miss.
class WordCache {
 public:
  /// For a vocabulary of `tokens`.
  explicit WordCache(size_t tokens);

  /// Appends the ids of `word` when they are known.
  bool find(std::string_view word, uint64_t hash, std::vector<int32_t>& ids) const;
  /// Remembers short words of few ids, in place of what was there.
  void insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids);

 private:
  static constexpr size_t kMaxSlots = size_t{1} << 15, kMaxBytes = 29, kMaxIds = 8;
  struct alignas(64) Slot {
    std::atomic_flag busy;
    uint8_t bytes = 0, count = 0;
    std::array<char, kMaxBytes> word;
    std::array<int32_t, kMaxIds> ids;
  };
  size_t count_;
  std::unique_ptr<Slot[]> slots_;
};

/// What a byte-pair model is made of.
struct BpeParts {
  /// Ids by the text that words consist of: raw bytes when `raw_bytes`, else characters.
  TokenIds ids;
  bool raw_bytes = false;
  struct Merge {
    int32_t left, right, result;
    uint32_t rank;
  };
  std::vector<Merge> merges;
  /// A word that is a token is that token, whatever the merges say.
  bool ignore_merges = false;
  /// Characters without an id are spelled as tokens <0x00> to <0xFF>, where all of those exist.
  std::optional<std::array<int32_t, 256>> byte_fallback;
  /// Else they are this token; several of them in a row are one when `fuse_unknown`. Without it they are dropped.
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;
};

class Bpe {
 public:
  explicit Bpe(BpeParts parts);

  /// Working memory of one encode() call.
  struct Scratch {
    struct Symbol {
      int32_t id, previous, next;
    };
    struct Candidate {
      uint32_t rank;
      int32_t at, result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
  };

  /// Appends the ids of `word`, which isn't empty. Thread-safe, each thread with a scratch of its own.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct MergeTo {
    uint32_t rank;
    int32_t result;
  };

  void start_symbols(std::string_view word, Scratch& scratch) const;
  void merge(Scratch& scratch) const;
  void push_candidate(Scratch& scratch, int32_t at) const;

  BpeParts parts_;
  std::array<int32_t, 256> byte_ids_;
  bool only_bytes_ = false;  ///< every byte is a token and nothing merges
  FlatMap<MergeTo> merges_;
  mutable WordCache cache_;
};

}  // namespace yoke
