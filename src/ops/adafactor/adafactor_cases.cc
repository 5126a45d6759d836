#include "ops/adafactor/adafactor.h"
#include "ops/moment_reference.h"

namespace yoke {
namespace {

constexpr double kRate = 0.02, kDecay = 0.1;

struct Settings {
  int64_t rows, cols;
  bool vector = false;
  DType copy = DType::f32;
  DType gradient = DType::f32;
  int64_t step = 5;
  double gradient_size = 1;  ///< beside second moments of about 1: large ones meet the limit on the update
};

void reference(const Settings& s, const Arrays& in, Arrays& out) {
  const double beta = 1 - std::pow(static_cast<double>(s.step), -0.8);
  const auto rows = static_cast<size_t>(s.rows), cols = static_cast<size_t>(s.cols);
  std::vector<double> u(rows * cols);
  const auto g = [&](size_t i) { return in.at("gradient")[i] * 0.5; };
  const auto square = [&](size_t i) { return g(i) * g(i) + 1e-30; };
  if (s.vector) {
    for (size_t i = 0; i < cols; ++i) {
      out["v"][i] = beta * in.at("v0")[i] + (1 - beta) * square(i);
      u[i] = g(i) / std::sqrt(out["v"][i]);
    }
  } else {
    double mean = 0;
    for (size_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (size_t c = 0; c < cols; ++c) sum += square(r * cols + c);
      out["row"][r] = beta * in.at("row0")[r] + (1 - beta) * sum / static_cast<double>(cols);
      mean += out["row"][r] / static_cast<double>(rows);
    }
    for (size_t c = 0; c < cols; ++c) {
      double sum = 0;
      for (size_t r = 0; r < rows; ++r) sum += square(r * cols + c);
      out["col"][c] = beta * in.at("col0")[c] + (1 - beta) * sum / static_cast<double>(rows);
    }
    for (size_t i = 0; i < u.size(); ++i) u[i] = g(i) / std::sqrt(out["row"][i / cols] * out["col"][i % cols] / mean);
  }
  double total = 0;
  for (const double x : u) total += x * x;
  const double rms = std::sqrt(total / static_cast<double>(u.size()));
  for (size_t i = 0; i < u.size(); ++i) {
    const double w = in.at("master0")[i];
    out["master"][i] = w - kRate * (u[i] / std::max(1.0, rms) + kDecay * w);
    if (s.copy != DType::f32) out["weight"][i] = out["master"][i];
  }
}

OpCase row(const Settings& s, bool bench = false) {
  OpCase c;
  c.name = fmt::format("adafactor/{}/{}x{}{}/step{}/size{}/gradient_{}", name_of(s.copy), s.rows, s.cols,
                       s.vector ? "/vector" : "", s.step, s.gradient_size, name_of(s.gradient));
  c.bench = bench;
  const Shape shape = s.vector ? Shape{s.cols} : Shape{s.rows, s.cols};
  c.inputs = {
      {.name = "master0", .shape = shape},
      {.name = "gradient", .dtype = s.gradient, .shape = shape, .low = -s.gradient_size, .high = s.gradient_size}};
  c.outputs = {{.name = "master", .shape = shape}};
  if (s.copy != DType::f32) c.outputs.push_back({.name = "weight", .dtype = s.copy, .shape = shape});
  const auto state = [&](const std::string& name, int64_t size) {
    c.inputs.push_back({.name = name + "0", .shape = {size}, .low = 0.5, .high = 1.5});
    c.outputs.push_back({.name = name, .shape = {size}});
  };
  if (s.vector) {
    state("v", s.cols);
  } else {
    state("row", s.rows);
    state("col", s.cols);
  }
  c.reference = [=](const Arrays& in, Arrays& out) { reference(s, in, out); };
  c.forward = [=](Context& ctx, Views& v) {
    for (const char* name : {"master", "row", "col", "v"}) {
      if (v.contains(name)) copy_data(v[fmt::format("{}0", name)], v[name]);
    }
    const auto view = [&](const char* name) { return v.contains(name) ? v[name] : TensorView{}; };
    adafactor(ctx, {.weights = {v["master"], view("weight")},
                    .gradient = v["gradient"],
                    .row = view("row"),
                    .col = view("col"),
                    .v = view("v"),
                    .learning_rate = static_cast<float>(kRate),
                    .weight_decay = static_cast<float>(kDecay),
                    .gradient_scale = 0.5f,
                    .step = s.step});
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row({.rows = 1, .cols = 1, .copy = copy}));
    all.push_back(row({.rows = 37, .cols = 50, .copy = copy, .step = 1}));
    all.push_back(row({.rows = 30, .cols = 1031, .copy = copy, .gradient_size = 30}));
    all.push_back(row({.rows = 1, .cols = 700, .vector = true, .copy = copy, .step = 1000}));
    all.push_back(row({.rows = 1, .cols = 31, .vector = true, .copy = copy, .gradient_size = 30}));
  }
  all.push_back(row({.rows = 600, .cols = 64, .gradient = DType::bf16}));
  all.push_back(row({.rows = 8192, .cols = 4096, .copy = DType::bf16}, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
