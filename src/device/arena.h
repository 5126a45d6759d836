// Arena: named bump allocation with mark and release over one block. Everything a rank keeps or scribbles on during
// training comes from here, so the plan and the run are the same sequence of calls.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/tensor.h"

namespace yoke {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  struct Allocation {
    std::string name;
    size_t offset = 0;
    size_t bytes = 0;  ///< rounded up to kAlignment
  };
  struct Mark {
    size_t used = 0;
    size_t count = 0;
  };

  /// Counts only: every view it hands out has no data.
  Arena() = default;
  /// Hands out memory of [base, base + capacity); base must be kAlignment aligned and not null.
  Arena(void* base, size_t capacity);

  /// Contents are undefined. Running past the capacity is a bug: the plan sized the block with the same calls.
  TensorView allocate(const char* name, DType dtype, const Shape& shape);

  Mark mark() const { return {used_, stack_.size()}; }
  /// Frees everything allocated since the mark.
  void release(const Mark& mark);

  bool counting() const { return base_ == nullptr; }
  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }
  size_t peak() const { return peak_; }
  /// What was allocated at the moment of the peak, in order of allocation.
  std::vector<Allocation> alive_at_peak() const;

 private:
  char* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
  size_t peak_ = 0;
  bool peak_is_now_ = false;  // the stack still shows the peak; copied on the first release after it
  std::vector<Allocation> stack_;
  std::vector<Allocation> stack_at_peak_;
};

/// Releases what was allocated within a scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;
  ~ArenaScope() { arena_.release(mark_); }

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

/// A block of memory from the operating system, given back on destruction. Pages are committed when first touched.
class MemoryBlock {
 public:
  MemoryBlock() = default;
  /// UserError (does_not_fit) when the system refuses.
  explicit MemoryBlock(size_t bytes);
  MemoryBlock(MemoryBlock&& other) noexcept;
  MemoryBlock& operator=(MemoryBlock&& other) noexcept;
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;
  ~MemoryBlock();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace yoke
