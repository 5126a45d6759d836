#include "checkpoint/convert.h"

#include <cstring>

namespace yoke {

namespace {

template <class T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class From, class To>
void convert(const char* from, char* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i, from += sizeof(From), to += sizeof(To)) {
    To value;
    if constexpr (std::is_same_v<From, double>) {
      value = from_float<To>(static_cast<float>(load<double>(from)));
    } else if constexpr (std::is_same_v<To, double>) {
      value = to_float(load<From>(from));
    } else {
      value = from_float<To>(to_float(load<From>(from)));
    }
    std::memcpy(to, &value, sizeof value);
  }
}

template <class From>
void convert_from(const char* from, char* to, DType to_type, int64_t count) {
  switch (to_type) {
    case DType::f32:
      return convert<From, float>(from, to, count);
    case DType::bf16:
      return convert<From, bf16>(from, to, count);
    case DType::f16:
      return convert<From, f16>(from, to, count);
    case DType::f64:
      if constexpr (!std::is_same_v<From, double>) return convert<From, double>(from, to, count);
      break;
    default:
      break;
  }
  YOKE_ASSERT(false, "conversion to {}", name_of(to_type));
}

}  // namespace

void convert_elements(const void* from, DType from_type, void* to, DType to_type, int64_t count) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  if (from_type == to_type) {
    if (count > 0) std::memcpy(target, source, static_cast<size_t>(count) * size_of(from_type));
    return;
  }
  switch (from_type) {
    case DType::f32:
      return convert_from<float>(source, target, to_type, count);
    case DType::bf16:
      return convert_from<bf16>(source, target, to_type, count);
    case DType::f16:
      return convert_from<f16>(source, target, to_type, count);
    case DType::f64:
      return convert_from<double>(source, target, to_type, count);
    default:
      YOKE_ASSERT(false, "conversion from {}", name_of(from_type));
  }
}

}  // namespace yoke
