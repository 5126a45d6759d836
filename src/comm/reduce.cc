#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "comm/transport.h"

namespace yoke {

namespace {

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, bf16> || std::is_same_v<T, f16>, float, T>;

template <class T>
Accumulator<T> load(T x) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
    return to_float(x);
  } else {
    return x;
  }
}

template <class T>
T store(Accumulator<T> x) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
    return from_float<T>(x);
  } else {
    return x;
  }
}

struct Add {
  template <class A>
  A operator()(A a, A b) const {
    return a + b;
  }
};

struct Max {
  template <class A>
  A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }
};

// Block by block, so that sums stay in the cache and the output may be any of the sources.
template <class T, class Combine>
void reduce_typed(const std::vector<const void*>& sources, void* out, int64_t elements, const Combine& combine) {
  using A = Accumulator<T>;
  constexpr int64_t kBlock = 1024;
  A sums[kBlock];
  T* y = static_cast<T*>(out);
  if (sources.size() == 2) {
    const T *a = static_cast<const T*>(sources[0]), *b = static_cast<const T*>(sources[1]);
    for (int64_t i = 0; i < elements; ++i) y[i] = store<T>(combine(load(a[i]), load(b[i])));
    return;
  }
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t n = std::min(kBlock, elements - begin);
    const auto at = [&](size_t i) { return static_cast<const T*>(sources[i]) + begin; };
    const T* first = at(0);
    for (int64_t i = 0; i < n; ++i) sums[i] = load(first[i]);
    for (size_t s = 1; s < sources.size(); ++s) {
      const T* x = at(s);
      for (int64_t i = 0; i < n; ++i) sums[i] = combine(sums[i], load(x[i]));
    }
    for (int64_t i = 0; i < n; ++i) y[begin + i] = store<T>(sums[i]);
  }
}

template <class T>
void reduce_type(const std::vector<const void*>& sources, void* out, int64_t elements, Reduction reduction) {
  reduction == Reduction::sum ? reduce_typed<T>(sources, out, elements, Add())
                              : reduce_typed<T>(sources, out, elements, Max());
}

}  // namespace

void reduce_arrays(const std::vector<const void*>& sources, void* out, int64_t elements, DType dtype,
                   Reduction reduction) {
  switch (dtype) {
    case DType::f32:
      return reduce_type<float>(sources, out, elements, reduction);
    case DType::f64:
      return reduce_type<double>(sources, out, elements, reduction);
    case DType::bf16:
      return reduce_type<bf16>(sources, out, elements, reduction);
    case DType::f16:
      return reduce_type<f16>(sources, out, elements, reduction);
    case DType::i32:
      return reduce_type<int32_t>(sources, out, elements, reduction);
    case DType::i64:
      return reduce_type<int64_t>(sources, out, elements, reduction);
    case DType::u8:
      break;
  }
  YOKE_ASSERT(false, "no sums of {}", name_of(dtype));
}

}  // namespace yoke
