// One row of the operation table: shapes, types, tolerances and a float64 reference. tests/op_test.cc walks
// device x case x mode over all rows; a row added here is a test added.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/context.h"

namespace yoke {

/// Values by tensor name, row-major, as float64.
using Arrays = std::map<std::string, std::vector<double>>;
/// Views by tensor name.
using Views = std::map<std::string, TensorView>;

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  double low = -1, high = 1;               ///< uniform random values in [low, high]
  std::function<double(int64_t)> value{};  ///< or element i's value
  int64_t row_padding = 0;                 ///< elements between rows: a view into a wider matrix
  /// Compare as this type: the precision of what the value is computed from, where that is lower than its own.
  std::optional<DType> accuracy{};
};

struct GradientSpec {
  std::string of;  ///< input x: backward writes the view "dx"
  DType dtype = DType::f32;
  bool accumulates = false;         ///< honours backward's `accumulate`
  std::string may_alias{};          ///< view (e.g. "dy") that "dx" may share memory with
  std::optional<DType> accuracy{};  ///< as in TensorSpec
};

struct OpCase {
  std::string name;  ///< "rmsnorm/bf16/5x96/residual"
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  /// Fills every array of `out` (already sized) from `in`.
  std::function<void(const Arrays& in, Arrays& out)> reference;
  /// Views hold the inputs and outputs. Absent for operations without a forward of their own.
  std::function<void(Context&, Views&)> forward;
  /// {output, input}: pairs that the header allows to share memory; each is tried.
  std::vector<std::pair<std::string, std::string>> in_place{};

  /// Outputs whose gradients arrive as views "d<output>" with the output's type and shape.
  std::vector<std::string> seeds{};
  std::vector<GradientSpec> gradients{};
  /// Views hold inputs, outputs (after forward), d<seed> and d<input>.
  std::function<void(Context&, Views&, bool accumulate)> backward{};

  double tolerance = 1;  ///< factor on the type's tolerance, with the reason beside the row
  bool bench = false;    ///< a large row: timed by `op_test --bench`, not checked
};

/// `like` with another number of threads, for rows about results that must not depend on it.
inline Device with_threads(const Device& like, int threads) {
  const Device cpu = Device::cpu(threads, like.isa());
  return like.is_dry() ? Device::dry(cpu) : cpu;
}

/// Copies a view to another of its type and shape, unless the device is dry: for operations that update what
/// an input only starts.
inline void copy_data(const TensorView& from, const TensorView& to) {
  if (from.data == nullptr) return;
  for (int64_t r = 0; r < from.rows(); ++r) {
    const int64_t size = static_cast<int64_t>(size_of(from.dtype));
    std::memcpy(to.as<char>() + r * to.row_stride * size, from.as<char>() + r * from.row_stride * size,
                static_cast<size_t>(from.cols() * size));
  }
}

/// All rows of all operations.
std::vector<OpCase>& op_cases();

/// Put one at namespace scope of `<op>_cases.cc`.
struct RegisterOpCases {
  explicit RegisterOpCases(std::vector<OpCase> cases) {
    for (OpCase& c : cases) op_cases().push_back(std::move(c));
  }
};

}  // namespace yoke
