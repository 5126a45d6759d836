#include "device/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace yoke {

Arena::Arena(void* base, size_t capacity) : base_(static_cast<char*>(base)), capacity_(capacity) {
  YOKE_ASSERT(base != nullptr && reinterpret_cast<uintptr_t>(base) % kAlignment == 0);
}

TensorView Arena::allocate(const char* name, DType dtype, const Shape& shape, MemoryKind kind) {
  constexpr auto kLargest = size_t{1} << 63;
  const auto payload =
      static_cast<size_t>(checked_product(shape.elements(), static_cast<int64_t>(size_of(dtype)), name));
  const size_t bytes = (payload + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes >= kLargest - used_) {
    throw UserError(ExitCode::does_not_fit,
                    fmt::format("'{}' {} needs {} bytes beside {}; sums of 2^63 bytes and more can't be computed with.",
                                name, shape.str(), bytes, used_));
  }
  YOKE_ASSERT(counting() || used_ + bytes <= capacity_, "'{}' needs {} bytes, the arena has {} of {} left", name, bytes,
              capacity_ - used_, capacity_);
  TensorView view(counting() ? nullptr : base_ + used_, dtype, shape);
  stack_.push_back({name, used_, bytes, kind});
  used_ += bytes;
  if (used_ > peak_) {
    peak_ = used_;
    peak_left_ = stack_.size();
    peak_released_.clear();
    moment_of_peak_ = moment_;
  }
  if (observer_) observer_(stack_.back(), true);
  return view;
}

void Arena::release(const Mark& mark) {
  YOKE_ASSERT(mark.used <= used_ && mark.count <= stack_.size(), "marks are released in reverse order");
  while (stack_.size() > mark.count) {
    if (observer_) observer_(stack_.back(), false);
    if (stack_.size() == peak_left_) {
      peak_released_.push_back(std::move(stack_.back()));
      --peak_left_;
    }
    stack_.pop_back();
  }
  used_ = mark.used;
}

std::vector<Arena::Allocation> Arena::alive_at_peak() const {
  std::vector<Allocation> alive(stack_.begin(), stack_.begin() + static_cast<ptrdiff_t>(peak_left_));
  alive.insert(alive.end(), peak_released_.rbegin(), peak_released_.rend());
  return alive;
}

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

void MemoryBlock::commit(int threads) const {
  constexpr size_t kPage = 4096;
  const size_t pages = (bytes_ + kPage - 1) / kPage, count = static_cast<size_t>(threads);
  const auto touch = [&](size_t part) {
    volatile char* bytes = static_cast<char*>(data_);
    for (size_t page = pages * part / count; page < pages * (part + 1) / count; ++page) bytes[page * kPage] = 0;
  };
  std::vector<std::jthread> others;
  for (size_t part = 1; part < count; ++part) others.emplace_back(touch, part);
  touch(0);
}

MemoryBlock::~MemoryBlock() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace yoke
