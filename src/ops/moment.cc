#include "ops/moment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/check.h"

namespace yoke {

namespace {

DynamicMap make_map(bool is_signed) {
  constexpr int kDecades = 7;
  DynamicMap map{};
  size_t count = 0;
  map.values[count++] = 0;
  map.values[count++] = 1;
  for (int decade = 0; decade < kDecades; ++decade) {
    const int intervals = 1 << (is_signed ? decade : decade + 1);
    const double end = std::pow(10.0, decade - (kDecades - 1));  // the decade is [end / 10, end]
    for (int i = 0; i < intervals; ++i) {
      const double midpoint = end * (0.1 + 0.9 * (i + 0.5) / intervals);
      map.values[count++] = static_cast<float>(midpoint);
      if (is_signed) map.values[count++] = static_cast<float>(-midpoint);
    }
  }
  YOKE_ASSERT(count == map.values.size());
  std::sort(map.values.begin(), map.values.end());
  for (size_t i = 0; i + 1 < map.values.size(); ++i) {
    map.boundaries[i] =
        static_cast<float>(0.5 * (static_cast<double>(map.values[i]) + static_cast<double>(map.values[i + 1])));
  }
  map.boundaries.back() = std::numeric_limits<float>::infinity();
  if (!is_signed) map.boundaries[0] = 0;  // what is positive is never rounded to zero
  map.zero = static_cast<int32_t>(std::find(map.values.begin(), map.values.end(), 0.0f) - map.values.begin());
  const auto first = map.boundaries.begin() + map.zero;
  for (uint32_t cell = 0; cell < DynamicMap::kCells; ++cell) {
    const auto edge = [&](uint32_t c) {
      return detail::bits_float((c + DynamicMap::kFirstCell) << DynamicMap::kCellBits);
    };
    const float low = cell == 0 ? 0 : edge(cell), high = edge(cell + 1);
    const auto begin = std::lower_bound(first, map.boundaries.end(), low);
    YOKE_ASSERT(std::lower_bound(begin, map.boundaries.end(), high) - begin <= 1);
    map.start[cell] = static_cast<int32_t>(begin - first);
  }
  return map;
}

}  // namespace

const DynamicMap& dynamic_map(bool is_signed) {
  static const DynamicMap with_sign = make_map(true), without = make_map(false);
  return is_signed ? with_sign : without;
}

void check_moment(const char* op, const char* name, const MomentTensor& moment, int64_t elements) {
  const DType dtype = moment.values.dtype;
  YOKE_ASSERT(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::u8, "{}: {} is {}", op, name,
              moment.values.str());
  check_tensor(op, name, moment.values, dtype, 1, elements);
  YOKE_ASSERT(moment.scale.absent() == (dtype != DType::u8), "{}: scale of {}", op, name);
  if (dtype == DType::u8) {
    check_tensor(op, name, moment.scale, DType::f32, 1, (elements + kMomentBlock - 1) / kMomentBlock);
  }
}

double bytes_of(const MomentTensor& moment) {
  return static_cast<double>(moment.values.bytes() + (moment.scale.absent() ? 0 : moment.scale.bytes()));
}

void check_weights(const char* op, const OptimizedWeights& weights, int64_t elements) {
  const DType dtype = weights.master.dtype;
  YOKE_ASSERT(dtype == DType::f32 || (dtype == DType::bf16 && weights.copy.absent()), "{}: master is {}", op,
              weights.master.str());
  check_elements(op, "master", weights.master, dtype, elements);
  if (weights.copy.absent()) return;
  YOKE_ASSERT(weights.copy.dtype == DType::bf16 || weights.copy.dtype == DType::f16, "{}: copy is {}", op,
              weights.copy.str());
  check_elements(op, "copy", weights.copy, weights.copy.dtype, elements);
}

double bytes_of(const OptimizedWeights& weights) {
  return static_cast<double>(weights.master.bytes() + (weights.copy.absent() ? 0 : weights.copy.bytes()));
}

void check_gradient(const char* op, const TensorView& gradient, int64_t elements) {
  YOKE_ASSERT(gradient.dtype == DType::f32 || gradient.dtype == DType::bf16, "{}: gradient is {}", op, gradient.str());
  check_elements(op, "gradient", gradient, gradient.dtype, elements);
}

}  // namespace yoke
