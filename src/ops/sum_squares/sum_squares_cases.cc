#include <cmath>

#include "ops/elementwise/elementwise.h"
#include "ops/op_case.h"
#include "ops/sum_squares/sum_squares.h"

namespace yoke {
namespace {

/// Values whose squares span most of fp32's and leave fp16's range where the type allows it.
double spread(DType dtype, int64_t i) {
  const double unit = static_cast<double>((i * 37) % 113) / 64 - 0.75;
  if (dtype == DType::f16) return std::ldexp(unit, static_cast<int>(i % 23) - 9);
  return std::ldexp(unit, static_cast<int>(i % 180) - 90);
}

OpCase row(DType dtype, int64_t count, bool accumulate, bool bench = false) {
  OpCase c;
  c.name = fmt::format("sum_squares/{}/{}{}", name_of(dtype), count, accumulate ? "/accumulate" : "");
  c.bench = bench;
  c.inputs = {{.name = "x", .dtype = dtype, .shape = {count}, .value = [=](int64_t i) { return spread(dtype, i); }},
              {.name = "before", .dtype = DType::f64, .shape = {1}, .low = 1e50, .high = 1e54}};
  c.outputs = {{.name = "y", .dtype = DType::f64, .shape = {1}},
               {.name = "threads_differ", .dtype = DType::f64, .shape = {1}, .accuracy = DType::i64}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    long double sum = accumulate ? in.at("before")[0] : 0.0;
    for (const double x : in.at("x")) sum += static_cast<long double>(x) * x;
    out["y"][0] = static_cast<double>(sum);
  };
  c.forward = [=](Context& ctx, Views& v) {
    copy_data(v["before"], v["y"]);
    sum_squares(ctx, {.x = v["x"], .y = v["y"], .accumulate = accumulate});
    if (bench) return;
    double difference = 0;
    for (const int threads : {1, 3, 7}) {
      const Device device = with_threads(ctx.device, threads);
      Context other{device, ctx.stream, ctx.arena};
      copy_data(v["before"], v["threads_differ"]);
      sum_squares(other, {.x = v["x"], .y = v["threads_differ"], .accumulate = accumulate});
      if (v["y"].data == nullptr) continue;
      difference = std::max(difference, std::abs(*v["y"].as<double>() - *v["threads_differ"].as<double>()));
    }
    if (v["y"].data != nullptr) *v["threads_differ"].as<double>() = difference;
  };
  return c;
}

/// One infinity or NaN anywhere shows.
OpCase not_finite(DType dtype) {
  constexpr int64_t kCount = 70001;
  OpCase c;
  c.name = fmt::format("sum_squares/{}/not_finite", name_of(dtype));
  c.outputs = {{.name = "shows", .dtype = DType::i32, .shape = {3}}};
  c.reference = [](const Arrays&, Arrays& out) { out["shows"].assign(3, 1.0); };
  c.forward = [=](Context& ctx, Views& v) {
    ArenaScope scope(ctx.arena);
    const TensorView x = ctx.arena.allocate("x", dtype, {kCount}), y = ctx.arena.allocate("y", DType::f64, {1});
    constexpr float kBad[] = {INFINITY, -INFINITY, NAN};
    for (int64_t i = 0; i < 3; ++i) {
      fill(ctx, {.y = x, .value = 1});
      TensorView one(x.data, dtype, {1});
      if (x.data != nullptr) one.data = x.as<char>() + i * (kCount - 1) / 2 * static_cast<int64_t>(size_of(dtype));
      fill(ctx, {.y = one, .value = kBad[i]});
      sum_squares(ctx, {.x = x, .y = y});
      if (y.data == nullptr) continue;
      const double sum = *y.as<double>();
      v["shows"].as<int32_t>()[i] = i < 2 ? std::isinf(sum) : std::isnan(sum);
    }
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row(dtype, 1, false));
    all.push_back(row(dtype, 1000, true));
    all.push_back(row(dtype, 1 << 16, false));
    all.push_back(row(dtype, 5 * (1 << 16) + 77, false));
    all.push_back(not_finite(dtype));
  }
  all.push_back(row(DType::f32, int64_t{1} << 25, false, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
