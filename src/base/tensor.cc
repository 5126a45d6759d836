#include "base/tensor.h"

#include <algorithm>

namespace yoke {

int64_t checked_product(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) {
    fail_usage("{}: {} x {} is not a size that can be computed with (it must stay below 2^63).", what, a, b);
  }
  return product;
}

Shape::Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  YOKE_ASSERT(dims.size() <= kMaxRank);
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product = checked_product(product, dims_[i], "tensor shape");
  return product;
}

int64_t Shape::rows() const {
  int64_t product = 1;
  for (int i = 0; i + 1 < rank_; ++i) product *= dims_[i];
  return product;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += fmt::format("{}{}", i ? ", " : "", dims_[i]);
  return text + "]";
}

std::string TensorView::str() const { return fmt::format("{} {}", name_of(dtype), shape.str()); }

namespace {

void* advance(const TensorView& t, int64_t elements) {
  if (t.data == nullptr) return nullptr;
  return static_cast<char*>(t.data) + elements * static_cast<int64_t>(size_of(t.dtype));
}

}  // namespace

TensorView columns(const TensorView& t, int64_t begin, int64_t count) {
  YOKE_ASSERT(begin >= 0 && count >= 0 && begin + count <= t.cols(), "columns {}+{} of {}", begin, count, t.str());
  TensorView view(advance(t, begin), t.dtype, {t.rows(), count});
  view.row_stride = t.row_stride;
  return view;
}

TensorView rows(const TensorView& t, int64_t begin, int64_t count) {
  YOKE_ASSERT(begin >= 0 && count >= 0 && begin + count <= t.rows(), "rows {}+{} of {}", begin, count, t.str());
  TensorView view(advance(t, begin * t.row_stride), t.dtype, {count, t.cols()});
  view.row_stride = t.row_stride;
  return view;
}

TensorView reshape(const TensorView& t, const Shape& shape) {
  YOKE_ASSERT(t.contiguous() && shape.elements() == t.elements(), "reshape of {} to {}", t.str(), shape.str());
  return TensorView(t.data, t.dtype, shape);
}

}  // namespace yoke
