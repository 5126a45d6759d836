// Arena: named bump allocation with mark and release over one block. Everything a rank keeps or scribbles on during
// training comes from here, so the plan and the run are the same sequence of calls.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "device/memory_kind.h"

namespace yoke {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  struct Allocation {
    std::string name;
    size_t offset = 0;
    size_t bytes = 0;  ///< rounded up to kAlignment
    MemoryKind kind = MemoryKind::workspace;
  };
  struct Mark {
    size_t used = 0;
    size_t count = 0;
  };

  /// Counts only: every view it hands out has no data.
  Arena() = default;
  /// Hands out memory of [base, base + capacity); base must be kAlignment aligned and not null.
  Arena(void* base, size_t capacity);

  /// Contents are undefined. Running past the capacity is a bug: the plan sized the block with the same calls. An
  /// operation's own memory is workspace; who allocates anything else says what it is for. UserError when the bytes, or
  /// the sum of all that is alive, can't be counted in 63 bits.
  TensorView allocate(const char* name, DType dtype, const Shape& shape, MemoryKind kind = MemoryKind::workspace);

  Mark mark() const { return {used_, stack_.size()}; }
  /// Frees everything allocated since the mark.
  void release(const Mark& mark);

  bool counting() const { return base_ == nullptr; }
  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }
  size_t peak() const { return peak_; }
  /// What is allocated now, and what was at the moment of the peak, in order of allocation.
  const std::vector<Allocation>& alive() const { return stack_; }
  std::vector<Allocation> alive_at_peak() const;

  /// Says which part of a step is running from now on.
  void enter(const char* part, int64_t layer = -1) { moment_.part = part, moment_.layer = layer; }
  void enter_stage(const char* stage) { moment_ = {stage, "", -1}; }
  const Moment& moment() const { return moment_; }
  /// The part in which the peak was reached first.
  const Moment& moment_of_peak() const { return moment_of_peak_; }

  /// Called after every allocation (true) and, one by one, before every release (false).
  using Observer = std::function<void(const Allocation&, bool allocated)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  char* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
  size_t peak_ = 0;
  std::vector<Allocation> stack_;
  // The stack at the peak: what is left of it on the stack, and what was released since, last first.
  size_t peak_left_ = 0;
  std::vector<Allocation> peak_released_;
  Moment moment_, moment_of_peak_;
  Observer observer_;
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

  /// Makes the system commit every page now, each thread a part: what is missing is missing before the work starts.
  void commit(int threads) const;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace yoke
