#include "ops/moment_reference.h"
#include "ops/muon/muon.h"

namespace yoke {
namespace {

constexpr RandomStream kRandom{7, uint64_t{4} << 24 | 2};
constexpr double kRate = 0.02, kMomentum = 0.95, kDecay = 0.1, kScale = 0.5;

using Matrix = std::vector<double>;

/// [m, k] times [k, n], row-major.
Matrix product(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k) {
  Matrix c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t x = 0; x < k; ++x) {
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + x] * b[x * n + j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a, int64_t rows, int64_t cols) {
  Matrix t(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) t[j * rows + i] = a[i * cols + j];
  }
  return t;
}

/// The iteration as it is written, always from the left, on float64.
Matrix orthogonalised(Matrix x, int64_t rows, int64_t cols) {
  double square = 0;
  for (const double value : x) square += value * value;
  for (double& value : x) value /= std::sqrt(square) + 1e-7;
  for (int step = 0; step < 5; ++step) {
    const Matrix a = product(x, transposed(x, rows, cols), rows, rows, cols);  // x x^T
    const Matrix aa = product(a, a, rows, rows, rows);
    Matrix polynomial(a.size());
    for (size_t i = 0; i < a.size(); ++i) polynomial[i] = -4.7750 * a[i] + 2.0315 * aa[i];
    const Matrix rest = product(polynomial, x, rows, cols, rows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + rest[i];
  }
  return x;
}

struct Settings {
  std::vector<int64_t> parts;
  int64_t cols;
  DType copy = DType::f32;
  DType moment = DType::f32;
  DType gradient = DType::f32;
};

void reference(const Settings& s, const Arrays& in, Arrays& out) {
  const bool codes = s.moment == DType::u8;
  Matrix m = codes ? reference_decode(in.at("m0"), in.at("m_scale0"), true) : in.at("m0"), direction(m.size());
  for (size_t i = 0; i < m.size(); ++i) {
    const double g = in.at("gradient")[i] * kScale;
    m[i] = kMomentum * m[i] + g;
    direction[i] = g + kMomentum * m[i];
  }
  auto from = direction.begin();
  size_t at = 0;
  for (const int64_t rows : s.parts) {
    const auto end = from + rows * s.cols;
    const double size = 0.2 * std::sqrt(static_cast<double>(std::max(rows, s.cols)));
    for (const double o : orthogonalised(Matrix(from, end), rows, s.cols)) {
      const double w = in.at("master0")[at];
      out["master"][at] = w - kRate * (size * o + kDecay * w);
      if (s.copy != DType::f32) out["weight"][at] = out["master"][at];
      ++at;
    }
    from = end;
  }
  if (codes) {
    reference_encode(m, true, out["m"], out["m_scale"]);
  } else {
    out["m"] = m;
  }
}

OpCase row(const Settings& s, bool bench = false) {
  int64_t rows = 0;
  std::string shape;
  for (const int64_t part : s.parts) {
    rows += part;
    shape += fmt::format("{}{}", shape.empty() ? "" : "+", part);
  }
  const Shape matrix{rows, s.cols};
  OpCase c;
  c.name = fmt::format("muon/{}/{}x{}/moment_{}/gradient_{}", name_of(s.copy), shape, s.cols, name_of(s.moment),
                       name_of(s.gradient));
  c.bench = bench;
  c.inputs = {{.name = "master0", .shape = matrix}, {.name = "gradient", .dtype = s.gradient, .shape = matrix}};
  c.outputs = {{.name = "master", .shape = matrix}};
  if (s.copy != DType::f32) c.outputs.push_back({.name = "weight", .dtype = s.copy, .shape = matrix});
  const Shape flat{matrix.elements()};
  if (s.moment == DType::u8) {
    c.inputs.push_back({.name = "m0", .dtype = DType::u8, .shape = flat, .value = [](int64_t i) {
                          return static_cast<double>(i * 31 % 256);
                        }});
    c.inputs.push_back({.name = "m_scale0", .shape = {moment_blocks(flat.elements())}, .low = 0});
    c.outputs.push_back({.name = "m", .dtype = DType::u8, .shape = flat});
    c.outputs.push_back({.name = "m_scale", .shape = {moment_blocks(flat.elements())}});
  } else {
    c.inputs.push_back({.name = "m0", .shape = flat});
    c.outputs.push_back({.name = "m", .shape = flat});
  }
  c.reference = [=](const Arrays& in, Arrays& out) { reference(s, in, out); };
  c.forward = [=](Context& ctx, Views& v) {
    for (const char* name : {"master", "m", "m_scale"}) {
      if (v.contains(name)) copy_data(v[fmt::format("{}0", name)], v[name]);
    }
    muon(ctx, {.weights = {v["master"], s.copy == DType::f32 ? TensorView{} : v["weight"]},
               .gradient = v["gradient"],
               .m = moment_of(v, "m"),
               .parts = s.parts,
               .learning_rate = static_cast<float>(kRate),
               .momentum = static_cast<float>(kMomentum),
               .weight_decay = static_cast<float>(kDecay),
               .gradient_scale = static_cast<float>(kScale),
               .random = kRandom});
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row({.parts = {1}, .cols = 1, .copy = copy}));
    all.push_back(row({.parts = {7}, .cols = 20, .copy = copy}));
    all.push_back(row({.parts = {40}, .cols = 9, .copy = copy}));
    all.push_back(row({.parts = {32, 16, 16}, .cols = 24, .copy = copy}));
    all.push_back(row({.parts = {45, 45}, .cols = 33, .copy = copy}));
  }
  all.push_back(row({.parts = {32, 16, 16}, .cols = 24, .moment = DType::u8}));
  all.push_back(row({.parts = {30, 30}, .cols = 11, .gradient = DType::bf16}));
  all.push_back(row({.parts = {2048, 2048}, .cols = 768, .copy = DType::bf16}, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
