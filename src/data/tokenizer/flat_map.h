// A hash table from 64-bit keys, open addressing in one array: pairs of token ids are looked up once a merge.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace yoke {

template <class Value>
class FlatMap {
 public:
  /// The value of `key`, or nullptr. Thread-safe beside other readers.
  const Value* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    for (size_t at = home(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (!slots_[at].used) return nullptr;
      if (slots_[at].key == key) return &slots_[at].value;
    }
  }

  /// The value of `key`, made when it is new.
  Value& operator[](uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[free_or_equal(key)];
    if (!slot.used) {
      slot.used = true;
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key = 0;
    Value value{};
    bool used = false;
  };

  size_t home(uint64_t key) const { return (key * 0x9e3779b97f4a7c15u) >> (64 - std::countr_zero(slots_.size())); }

  size_t free_or_equal(uint64_t key) const {
    size_t at = home(key);
    while (slots_[at].used && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.used) slots_[free_or_equal(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace yoke
