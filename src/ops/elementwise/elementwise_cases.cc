#include <bit>
#include <cmath>

#include "ops/elementwise/elementwise.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

OpCase add_row(DType dtype, int64_t rows, int64_t cols, int64_t padding = 0, bool bench = false) {
  OpCase c;
  c.name = fmt::format("add/{}/{}x{}{}", name_of(dtype), rows, cols, padding ? "/strided" : "");
  c.bench = bench;
  c.inputs = {{.name = "a", .dtype = dtype, .shape = {rows, cols}, .row_padding = padding},
              {.name = "b", .dtype = dtype, .shape = {rows, cols}}};
  c.outputs = {{.name = "y", .dtype = dtype, .shape = {rows, cols}, .row_padding = padding / 2}};
  c.in_place = {{"y", "a"}, {"y", "b"}};
  c.reference = [](const Arrays& in, Arrays& out) {
    for (size_t i = 0; i < out["y"].size(); ++i) out["y"][i] = in.at("a")[i] + in.at("b")[i];
  };
  c.forward = [](Context& ctx, Views& v) { add(ctx, {.a = v["a"], .b = v["b"], .y = v["y"]}); };
  return c;
}

/// A sum of fp32 and another type, in that type.
OpCase add_wide_row(DType dtype, int64_t rows, int64_t cols, int64_t padding) {
  OpCase c = add_row(dtype, rows, cols, padding);
  c.name += "/wide";
  c.inputs[0].dtype = DType::f32;
  c.in_place = {{"y", "b"}};
  return c;
}

OpCase convert_row(DType from, DType to, int64_t rows, int64_t cols, int64_t padding = 0, bool bench = false) {
  OpCase c;
  c.name = fmt::format("convert/{}/{}/{}x{}{}", name_of(from), name_of(to), rows, cols, padding ? "/strided" : "");
  c.bench = bench;
  c.inputs = {{.name = "x", .dtype = from, .shape = {rows, cols}, .low = -100, .high = 100, .row_padding = padding}};
  c.outputs = {{.name = "y", .dtype = to, .shape = {rows, cols}, .row_padding = 2 * padding}};
  c.reference = [](const Arrays& in, Arrays& out) { out["y"] = in.at("x"); };
  c.forward = [](Context& ctx, Views& v) { convert(ctx, {.x = v["x"], .y = v["y"]}); };
  return c;
}

/// A floating-point format by its field widths, converted the long way: independent of base/dtype.h.
struct Format {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  double decode(uint32_t bits) const {
    const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
    const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const double sign = (bits >> (exponent_bits + fraction_bits)) & 1 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return fraction ? std::nan("") : sign * HUGE_VAL;
    const double significand = fraction + (exponent ? std::ldexp(1.0, fraction_bits) : 0.0);
    return sign * std::ldexp(significand, std::max(exponent, 1) - bias() - fraction_bits);
  }
  /// Bits of the nearest value, ties to the even one; -1 for NaN.
  double encode(double x) const {
    if (std::isnan(x)) return -1;
    const uint32_t sign = std::signbit(x) ? 1u << (exponent_bits + fraction_bits) : 0u;
    const auto infinity = static_cast<uint32_t>((1 << exponent_bits) - 1) << fraction_bits;
    if (std::isinf(x)) return sign | infinity;
    if (x == 0) return sign;
    int power = 0;
    std::frexp(x, &power);
    const int unit = std::max(power - 1, 1 - bias()) - fraction_bits;  // exponent of the last place
    const double places = std::nearbyint(std::ldexp(std::abs(x), -unit));
    // Counted in last places from zero, the bits of finite values are consecutive integers.
    const double bits = places + std::ldexp(static_cast<double>(unit + fraction_bits - (1 - bias())), fraction_bits);
    return sign | static_cast<uint32_t>(std::min(bits, static_cast<double>(infinity)));
  }
};

Format format_of(DType dtype) {
  return dtype == DType::bf16 ? Format{8, 7} : dtype == DType::f16 ? Format{5, 10} : Format{8, 23};
}

/// Bits of every element of `y`, -1 for NaN, to an int32 (or, for fp32, float64) view.
template <class Word>
void store_bits(const TensorView& y, const TensorView& bits) {
  for (int64_t i = 0; i < y.elements(); ++i) {
    const bool nan = std::isnan(y.dtype == DType::f32    ? y.as<float>()[i]
                                : y.dtype == DType::bf16 ? to_float(y.as<bf16>()[i])
                                                         : to_float(y.as<f16>()[i]));
    bits.as<double>()[i] = nan ? -1 : static_cast<double>(y.as<Word>()[i]);
  }
}

/// Conversions compared bit by bit, special values and all: patterns arrive as integers.
OpCase exact_row(DType from, DType to, const char* name, int64_t count, std::function<uint32_t(int64_t)> pattern) {
  OpCase c;
  c.name = fmt::format("convert/{}/{}/{}", name_of(from), name_of(to), name);
  c.inputs = {{.name = "patterns", .dtype = DType::i64, .shape = {count}, .value = [=](int64_t i) {
                 return static_cast<double>(pattern(i));
               }}};
  c.outputs = {{.name = "bits", .dtype = DType::f64, .shape = {count}, .accuracy = DType::i64}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    for (size_t i = 0; i < out["bits"].size(); ++i) {
      const double x = format_of(from).decode(static_cast<uint32_t>(in.at("patterns")[i]));
      out["bits"][i] = format_of(to).encode(x);
    }
  };
  c.forward = [=](Context& ctx, Views& v) {
    ArenaScope scope(ctx.arena);
    const TensorView x = ctx.arena.allocate("x", from, {count}), y = ctx.arena.allocate("y", to, {count});
    if (x.data != nullptr) {
      for (int64_t i = 0; i < count; ++i) {
        const auto bits = static_cast<uint32_t>(v["patterns"].as<int64_t>()[i]);
        if (from == DType::f32) {
          x.as<uint32_t>()[i] = bits;
        } else {
          x.as<uint16_t>()[i] = static_cast<uint16_t>(bits);
        }
      }
    }
    convert(ctx, {.x = x, .y = y});
    if (y.data == nullptr) return;
    if (to == DType::f32) {
      store_bits<uint32_t>(y, v["bits"]);
    } else {
      store_bits<uint16_t>(y, v["bits"]);
    }
  };
  return c;
}

/// fp32 patterns: zeros, subnormals, limits, infinities, NaN, and for both 16-bit formats values at, just below and
/// just above the middle of two neighbours.
uint32_t special_pattern(int64_t i) {
  constexpr uint32_t kSpecial[] = {0,          1,          0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000, 0x7f800001,
                                   0x7fc00000, 0x7fffffff, 0x477fefff, 0x477ff000, 0x477fe000, 0x33000000, 0x33000001,
                                   0x32ffffff, 0x387fc000, 0x387fe000, 0x387fffff, 0x38800000, 0x7f7f8000, 0x7f7f7fff};
  constexpr int64_t kCount = std::size(kSpecial);
  const auto sign = static_cast<uint32_t>(i & 1) << 31;
  i /= 2;
  if (i < kCount) return sign | kSpecial[i];
  i -= kCount;
  const uint32_t spread = static_cast<uint32_t>(i) * 2654435761u;
  switch (i % 4) {
    case 0:
      return sign | (spread & 0x7fff0000u) | (0x7fffu + (spread & 3u));  // around bf16's middles
    case 1:
      return sign | ((0x38000000u + spread % 0x10000000u) & 0xffffe000u) | (0x0fffu + (spread & 3u));  // fp16's
    case 2:
      return sign | (0x32000000u + spread % 0x06800000u);  // fp16's subnormals
    default:
      return sign | (spread & 0x7fffffffu);
  }
}

OpCase fill_row(DType dtype, int64_t rows, int64_t cols, float value, int64_t padding = 0) {
  OpCase c;
  c.name = fmt::format("fill/{}/{}x{}{}", name_of(dtype), rows, cols, padding ? "/strided" : "");
  c.outputs = {{.name = "y", .dtype = dtype, .shape = {rows, cols}, .row_padding = padding}};
  c.reference = [=](const Arrays&, Arrays& out) { out["y"].assign(out["y"].size(), value); };
  c.forward = [=](Context& ctx, Views& v) { fill(ctx, {.y = v["y"], .value = value}); };
  return c;
}

constexpr RandomStream kStream{.seed = 0x123456789abcdefu, .stream = 77};

/// Equals RandomStream::normal, rounded; drawn in one piece, or cut at an odd place with other threads.
OpCase normal_row(DType dtype, int64_t count, uint64_t first, int64_t cut, bool bench = false) {
  constexpr float kDeviation = 0.02f;
  OpCase c;
  c.name = fmt::format("fill_normal/{}/{}from{}{}", name_of(dtype), count, first, cut ? "/cut" : "");
  c.bench = bench;
  c.outputs = {{.name = "y", .dtype = dtype, .shape = {count}}};
  // To half a unit of fp32; the 16-bit types round that once more.
  if (dtype == DType::f32) c.tolerance = 0x1p-24 / 4e-6;
  c.reference = [=](const Arrays&, Arrays& out) {
    for (int64_t i = 0; i < count; ++i)
      out["y"][i] = kStream.normal(first + static_cast<uint64_t>(i)) * static_cast<double>(kDeviation);
  };
  c.forward = [=](Context& ctx, Views& v) {
    const auto draw = [&](Context& with, const TensorView& y, uint64_t at) {
      fill_normal(with, {.y = y, .random = kStream, .first = at, .deviation = kDeviation});
    };
    if (cut == 0) return draw(ctx, v["y"], first);
    TensorView lower = v["y"], upper = v["y"];
    lower.shape = {cut};
    upper.shape = {count - cut};
    if (upper.data != nullptr) upper.data = upper.as<char>() + static_cast<size_t>(cut) * size_of(dtype);
    lower.row_stride = cut;
    upper.row_stride = count - cut;
    const Device device = with_threads(ctx.device, 3);
    Context other{device, ctx.stream, ctx.arena};
    draw(other, lower, first);
    draw(ctx, upper, first + static_cast<uint64_t>(cut));
  };
  return c;
}

/// A window of a matrix of `step` columns that begins at number `first`.
OpCase normal_window(DType dtype, int64_t rows, int64_t cols, uint64_t first, int64_t step) {
  constexpr float kDeviation = 0.02f;
  OpCase c;
  c.name = fmt::format("fill_normal/{}/{}x{}from{}of{}", name_of(dtype), rows, cols, first, step);
  c.outputs = {{.name = "y", .dtype = dtype, .shape = {rows, cols}}};
  if (dtype == DType::f32) c.tolerance = 0x1p-24 / 4e-6;  // as in normal_row
  c.reference = [=](const Arrays&, Arrays& out) {
    for (int64_t i = 0; i < rows * cols; ++i) {
      const auto at = first + static_cast<uint64_t>(i / cols * step + i % cols);
      out["y"][i] = kStream.normal(at) * static_cast<double>(kDeviation);
    }
  };
  c.forward = [=](Context& ctx, Views& v) {
    fill_normal(ctx, {.y = v["y"], .random = kStream, .first = first, .deviation = kDeviation, .row_step = step});
  };
  return c;
}

/// Moments and tails of a million numbers, each within five of its own standard errors of the normal distribution's.
OpCase moments_row() {
  constexpr int64_t kCount = 1 << 20;
  constexpr double kError = 5.0 / 1024;  // five standard errors of a mean of unit deviation
  OpCase c;
  c.name = "fill_normal/moments";
  // mean, variance, skewness, kurtosis, correlation of neighbours, share beyond 1 and beyond 3; each less its expected
  // value, in units of five standard errors, and rounded towards zero.
  c.outputs = {{.name = "outside", .dtype = DType::f64, .shape = {7}, .accuracy = DType::i64}};
  c.reference = [](const Arrays&, Arrays& out) { out["outside"].assign(7, 0.0); };
  c.forward = [=](Context& ctx, Views& v) {
    ArenaScope scope(ctx.arena);
    const TensorView y = ctx.arena.allocate("y", DType::f32, {kCount});
    fill_normal(ctx, {.y = y, .random = kStream});
    if (y.data == nullptr) return;
    double sums[7] = {};
    for (int64_t i = 0; i < kCount; ++i) {
      const double x = y.as<float>()[i];
      const double terms[7] = {x,
                               x * x - 1,
                               x * x * x,
                               x * x * x * x - 3,
                               i ? x * y.as<float>()[i - 1] : 0,
                               (std::abs(x) > 1) - 0.31731050786291415,
                               (std::abs(x) > 3) - 0.0026997960632601866};
      for (int k = 0; k < 7; ++k) sums[k] += terms[k];
    }
    const double deviation[7] = {1, std::sqrt(2.0), std::sqrt(15.0), std::sqrt(96.0), 1, 0.4654, 0.0519};
    for (int k = 0; k < 7; ++k) v["outside"].as<double>()[k] = std::trunc(sums[k] / kCount / (deviation[k] * kError));
  };
  return c;
}

std::vector<OpCase> cases() {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  std::vector<OpCase> all{fill_row(DType::u8, 3, 1001, 200), fill_row(DType::f64, 2, 37, 0.375f, 3)};
  for (const DType dtype : kTypes) {
    all.push_back(add_row(dtype, 1, 1));
    all.push_back(add_row(dtype, 3, 701));
    all.push_back(add_row(dtype, 37, 515, 6));
    all.push_back(add_wide_row(dtype, 37, 515, 6));
    all.push_back(fill_row(dtype, 3, 1001, 0.15625f));
    all.push_back(fill_row(dtype, 5, 31, -3.0f, 4));
    all.push_back(normal_row(dtype, 1, 5, 0));
    all.push_back(normal_row(dtype, 20001, 3, 0));
    all.push_back(normal_row(dtype, 20001, 3, 777));
    all.push_back(normal_window(dtype, 37, 701, 5 * 1402 + 701, 1402));
    all.push_back(normal_window(dtype, 5, 33, 7, 99));
    all.push_back(normal_row(dtype, 1500, (uint64_t{1} << 33) - 600, 601));
    for (const DType to : kTypes) {
      all.push_back(convert_row(dtype, to, 2, 1027));
      all.push_back(convert_row(dtype, to, 41, 513, 7));
      if (to == dtype) continue;
      if (dtype == DType::f32) {
        all.push_back(exact_row(dtype, to, "special", 1 << 16, special_pattern));
      } else {
        all.push_back(exact_row(dtype, to, "all", 1 << 16, [](int64_t i) { return static_cast<uint32_t>(i); }));
      }
    }
  }
  all.push_back(convert_row(DType::f64, DType::f32, 3, 333, 2));
  all.push_back(moments_row());
  all.push_back(add_row(DType::bf16, 1024, 768, 0, true));
  all.push_back(convert_row(DType::f32, DType::bf16, 4096, 768, 0, true));
  all.push_back(convert_row(DType::bf16, DType::f32, 4096, 768, 0, true));
  all.push_back(convert_row(DType::f32, DType::f16, 4096, 768, 0, true));
  all.push_back(normal_row(DType::f32, int64_t{1} << 23, 0, 0, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
