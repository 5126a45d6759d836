// Shape and TensorView: a pointer, an element type and a shape. Owns nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace yoke {

/// a * b for sizes, or a UserError that names `what` when the product does not fit 63 bits or an operand is negative.
int64_t checked_product(int64_t a, int64_t b, const char* what);

/// Up to four dimensions, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  /// Product of all dimensions; 1 for rank 0.
  int64_t elements() const;
  /// The last dimension; 1 for rank 0.
  int64_t cols() const { return rank_ == 0 ? 1 : dims_[rank_ - 1]; }
  /// Product of all dimensions but the last.
  int64_t rows() const;
  std::string str() const;  ///< "[2, 512, 768]"

  friend bool operator==(const Shape& a, const Shape& b) {
    return a.rank_ == b.rank_ && std::equal(a.dims_.begin(), a.dims_.begin() + a.rank_, b.dims_.begin());
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// A view of rows() x cols() elements. Elements of a row are adjacent; rows are `row_stride` elements apart, so that a
/// range of columns of a fused matrix is a view like any other. `data` is null on the dry device.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  int64_t row_stride = 0;

  TensorView() = default;
  TensorView(void* data, DType dtype, Shape shape) : data(data), dtype(dtype), shape(shape), row_stride(shape.cols()) {}

  int64_t rows() const { return shape.rows(); }
  int64_t cols() const { return shape.cols(); }
  int64_t elements() const { return shape.elements(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * size_of(dtype); }
  bool contiguous() const { return row_stride == cols() || rows() == 1; }
  /// True when the view stands for no tensor (an optional argument left out).
  bool absent() const { return shape.rank() == 0; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  std::string str() const;  ///< "bf16 [2, 512, 768]"
};

/// Columns [begin, begin + count) of every row, shape [rows, count].
TensorView columns(const TensorView& t, int64_t begin, int64_t count);
/// Rows [begin, begin + count), shape [count, cols].
TensorView rows(const TensorView& t, int64_t begin, int64_t count);
/// The same elements under another shape; `t` must be contiguous.
TensorView reshape(const TensorView& t, const Shape& shape);

}  // namespace yoke
