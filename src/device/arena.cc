#include "device/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace yoke {

Arena::Arena(void* base, size_t capacity) : base_(static_cast<char*>(base)), capacity_(capacity) {
  YOKE_ASSERT(base != nullptr && reinterpret_cast<uintptr_t>(base) % kAlignment == 0);
}

TensorView Arena::allocate(const char* name, DType dtype, const Shape& shape) {
  const auto payload =
      static_cast<size_t>(checked_product(shape.elements(), static_cast<int64_t>(size_of(dtype)), name));
  const size_t bytes = (payload + kAlignment - 1) / kAlignment * kAlignment;
  YOKE_ASSERT(counting() || used_ + bytes <= capacity_, "'{}' needs {} bytes, the arena has {} of {} left", name, bytes,
              capacity_ - used_, capacity_);
  TensorView view(counting() ? nullptr : base_ + used_, dtype, shape);
  stack_.push_back({name, used_, bytes});
  used_ += bytes;
  if (used_ > peak_) {
    peak_ = used_;
    peak_is_now_ = true;
  }
  return view;
}

void Arena::release(const Mark& mark) {
  YOKE_ASSERT(mark.used <= used_ && mark.count <= stack_.size(), "marks are released in reverse order");
  if (peak_is_now_ && mark.count < stack_.size()) {
    stack_at_peak_ = stack_;
    peak_is_now_ = false;
  }
  stack_.resize(mark.count);
  used_ = mark.used;
}

std::vector<Arena::Allocation> Arena::alive_at_peak() const { return peak_is_now_ ? stack_ : stack_at_peak_; }

MemoryBlock::MemoryBlock(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw UserError(ExitCode::does_not_fit, fmt::format("The system refused {} bytes of memory.", bytes));
  }
  ::madvise(mapped, bytes, MADV_HUGEPAGE);  // a hint: fewer TLB misses where the kernel allows it
  data_ = mapped;
}

MemoryBlock::MemoryBlock(MemoryBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryBlock& MemoryBlock::operator=(MemoryBlock&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryBlock::~MemoryBlock() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace yoke
