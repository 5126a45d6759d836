// Walks device x case x mode over the operation table (src/ops/op_case.h).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <optional>

#include "base/random.h"
#include "ops/op_case.h"

namespace yoke {

std::vector<OpCase>& op_cases() {
  static std::vector<OpCase> cases;
  return cases;
}

namespace {

constexpr uint8_t kSentinel = 0xA5;
constexpr size_t kGuard = 256;
constexpr int kThreads = 2;

double load(const TensorView& t, int64_t i) {
  const int64_t at = i / t.cols() * t.row_stride + i % t.cols();
  switch (t.dtype) {
    case DType::f32:
      return t.as<float>()[at];
    case DType::bf16:
      return to_float(t.as<bf16>()[at]);
    case DType::f16:
      return to_float(t.as<f16>()[at]);
    case DType::f64:
      return t.as<double>()[at];
    case DType::i32:
      return t.as<int32_t>()[at];
    case DType::i64:
      return static_cast<double>(t.as<int64_t>()[at]);
    case DType::u8:
      return t.as<uint8_t>()[at];
  }
  return 0;
}

void store(const TensorView& t, int64_t i, double x) {
  const int64_t at = i / t.cols() * t.row_stride + i % t.cols();
  switch (t.dtype) {
    case DType::f32:
      t.as<float>()[at] = static_cast<float>(x);
      break;
    case DType::bf16:
      t.as<bf16>()[at] = from_float<bf16>(static_cast<float>(x));
      break;
    case DType::f16:
      t.as<f16>()[at] = from_float<f16>(static_cast<float>(x));
      break;
    case DType::f64:
      t.as<double>()[at] = x;
      break;
    case DType::i32:
      t.as<int32_t>()[at] = static_cast<int32_t>(x);
      break;
    case DType::i64:
      t.as<int64_t>()[at] = static_cast<int64_t>(x);
      break;
    case DType::u8:
      t.as<uint8_t>()[at] = static_cast<uint8_t>(x);
      break;
  }
}

/// A tensor between guard bytes; padding between rows is guarded as well.
class Guarded {
 public:
  Guarded(DType dtype, const Shape& shape, int64_t row_padding) {
    const int64_t stride = shape.cols() + row_padding;
    const auto bytes = static_cast<size_t>(shape.rows() * stride) * size_of(dtype);
    buffer_.assign(bytes + 2 * kGuard + 64, kSentinel);
    auto address = reinterpret_cast<uintptr_t>(buffer_.data()) + kGuard;
    address = (address + 63) / 64 * 64;
    view_ = TensorView(reinterpret_cast<void*>(address), dtype, shape);
    view_.row_stride = stride;
    poison();
  }

  const TensorView& view() const { return view_; }

  /// NaN in every element: what a kernel does not write, or reads from an output, shows.
  void poison() {
    for (int64_t r = 0; r < view_.rows(); ++r) std::memset(row(r), 0xFF, row_bytes());
  }

  bool guards_intact() const {
    std::vector<uint8_t> copy = buffer_;
    for (int64_t r = 0; r < view_.rows(); ++r) {
      std::memset(copy.data() + (row(r) - reinterpret_cast<const char*>(buffer_.data())), kSentinel, row_bytes());
    }
    return std::all_of(copy.begin(), copy.end(), [](uint8_t b) { return b == kSentinel; });
  }

 private:
  size_t row_bytes() const { return static_cast<size_t>(view_.cols()) * size_of(view_.dtype); }
  char* row(int64_t r) const {
    return view_.as<char>() + static_cast<size_t>(r * view_.row_stride) * size_of(view_.dtype);
  }

  std::vector<uint8_t> buffer_;
  TensorView view_;
};

struct Tolerance {
  double relative, to_largest;
};

Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {4e-6, 2e-6};
    case DType::bf16:
      return {0x1p-8, 0x1p-9};
    case DType::f16:
      return {0x1p-11, 0x1p-12};
    case DType::f64:
      return {1e-14, 0};
    default:
      return {0, 0};
  }
}

class Bench {
 public:
  explicit Bench(const OpCase& c) : case_(c) {}

  /// Buffers of one run: all inputs filled, outputs poisoned.
  void prepare(uint64_t seed) {
    buffers_.clear();
    inputs_.clear();
    uint64_t stream = 0;
    for (const TensorSpec& spec : case_.inputs) {
      const RandomStream random{seed, stream++};
      auto& buffer = add(spec.name, spec.dtype, spec.shape, spec.row_padding);
      auto& array = inputs_[spec.name];
      array.resize(static_cast<size_t>(spec.shape.elements()));
      for (int64_t i = 0; i < spec.shape.elements(); ++i) {
        const double x = spec.value ? spec.value(i) : spec.low + (spec.high - spec.low) * random.uniform(i);
        store(buffer.view(), i, x);
        array[i] = load(buffer.view(), i);
      }
    }
    for (const TensorSpec& spec : case_.outputs) add(spec.name, spec.dtype, spec.shape, spec.row_padding);
    for (const std::string& seed_name : case_.seeds) {
      const TensorSpec& spec = output(seed_name);
      const RandomStream random{seed + 1, stream++};
      auto& buffer = add("d" + seed_name, spec.dtype, spec.shape, 0);
      auto& array = seeds_[seed_name];
      array.resize(static_cast<size_t>(spec.shape.elements()));
      for (int64_t i = 0; i < spec.shape.elements(); ++i) {
        store(buffer.view(), i, random.uniform(i) * 2 - 1);
        array[i] = load(buffer.view(), i);
      }
    }
    for (const GradientSpec& g : case_.gradients) add("d" + g.of, g.dtype, input(g.of).shape, 0);
  }

  Views views() {
    Views v;
    for (auto& [name, buffer] : buffers_) v[name] = buffer.view();
    return v;
  }

  const Arrays& inputs() const { return inputs_; }

  Arrays reference(const Arrays& in) const {
    Arrays out;
    for (const TensorSpec& spec : case_.outputs) out[spec.name].resize(static_cast<size_t>(spec.shape.elements()));
    case_.reference(in, out);
    return out;
  }

  /// d(sum of seeds * outputs)/d(input), by central differences of the float64 reference.
  std::vector<double> numeric_gradient(const std::string& of) const {
    Arrays in = inputs_;
    std::vector<double>& x = in[of];
    std::vector<double> gradient(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double keep = x[i], step = 1e-5 * std::max(1.0, std::abs(keep));
      x[i] = keep + step;
      const double above = objective(in);
      x[i] = keep - step;
      const double below = objective(in);
      x[i] = keep;
      gradient[i] = (above - below) / (2 * step);
    }
    return gradient;
  }

  void expect_guards() const {
    for (const auto& [name, buffer] : buffers_)
      EXPECT_TRUE(buffer.guards_intact()) << name << ": written out of bounds";
  }

  void expect_inputs_unchanged(const std::string& except) const {
    for (const auto& [name, array] : inputs_) {
      if (name == except) continue;
      for (size_t i = 0; i < array.size(); ++i) {
        ASSERT_EQ(load(buffers_.at(name).view(), static_cast<int64_t>(i)), array[i]) << name << " was changed";
      }
    }
  }

  void expect_near(const std::string& name, const TensorView& got, const std::vector<double>& want,
                   std::optional<DType> accuracy) const {
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::isinf(x) ? 0 : std::abs(x));
    const Tolerance tolerance = tolerance_of(accuracy.value_or(got.dtype));
    for (size_t i = 0; i < want.size(); ++i) {
      const double x = load(got, static_cast<int64_t>(i));
      const double allowed =
          case_.tolerance * (tolerance.relative * std::abs(want[i]) + tolerance.to_largest * largest);
      ASSERT_TRUE(std::abs(x - want[i]) <= allowed || x == want[i])
          << name << "[" << i << "] is " << x << ", expected " << want[i] << " within " << allowed;
    }
  }

  const TensorSpec& output(const std::string& name) const { return find(case_.outputs, name); }
  const TensorSpec& input(const std::string& name) const { return find(case_.inputs, name); }

 private:
  static const TensorSpec& find(const std::vector<TensorSpec>& specs, const std::string& name) {
    for (const TensorSpec& spec : specs) {
      if (spec.name == name) return spec;
    }
    ADD_FAILURE() << "no tensor " << name;
    std::abort();
  }

  Guarded& add(const std::string& name, DType dtype, const Shape& shape, int64_t padding) {
    return buffers_.emplace(name, Guarded(dtype, shape, padding)).first->second;
  }

  double objective(const Arrays& in) const {
    const Arrays out = reference(in);
    double sum = 0;
    for (const std::string& name : case_.seeds) {
      const auto& y = out.at(name);
      const auto& seed = seeds_.at(name);
      for (size_t i = 0; i < y.size(); ++i) sum += y[i] * seed[i];
    }
    return sum;
  }

  const OpCase& case_;
  std::map<std::string, Guarded> buffers_;
  Arrays inputs_, seeds_;
};

struct Machine {
  explicit Machine(const Device& device) : device(device), block(device.is_dry() ? 0 : size_t{256} << 20) {
    if (!device.is_dry()) arena = Arena(block.data(), block.bytes());
  }
  Context context() { return {device, stream, arena}; }

  Device device;
  MemoryBlock block;
  Arena arena;
  Stream stream;
};

class OpTest : public testing::TestWithParam<const OpCase*> {};

void check_forward(const OpCase& c, Isa isa) {
  Machine machine(Device::cpu(kThreads, isa));
  Context ctx = machine.context();
  Bench bench(c);
  std::vector<std::pair<std::string, std::string>> variants = c.in_place;
  variants.insert(variants.begin(), {"", ""});
  for (const auto& [output, input] : variants) {
    SCOPED_TRACE(output.empty() ? "forward" : output + " in place of " + input);
    bench.prepare(7);
    const Arrays want = bench.reference(bench.inputs());
    Views v = bench.views();
    if (!output.empty()) v[output] = v[input];
    c.forward(ctx, v);
    bench.expect_guards();
    bench.expect_inputs_unchanged(input);
    for (const TensorSpec& spec : c.outputs) {
      bench.expect_near(spec.name, v[spec.name], want.at(spec.name), spec.accuracy);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

void check_backward(const OpCase& c, Isa isa) {
  Machine machine(Device::cpu(kThreads, isa));
  Context ctx = machine.context();
  Bench bench(c);
  for (const bool accumulate : {false, true}) {
    for (const bool alias : {false, true}) {
      SCOPED_TRACE(fmt::format("backward accumulate={} alias={}", accumulate, alias));
      bench.prepare(11);
      Views v = bench.views();
      if (c.forward) c.forward(ctx, v);
      std::map<std::string, std::vector<double>> before;
      bool aliased = false;
      for (const GradientSpec& g : c.gradients) {
        const std::string name = "d" + g.of;
        if (alias && !g.may_alias.empty()) {
          v[name] = v[g.may_alias];
          aliased = true;
        }
        if (accumulate && g.accumulates) {
          auto& array = before[g.of];
          for (int64_t i = 0; i < v[name].elements(); ++i) {
            store(v[name], i, 0.25 * static_cast<double>(i % 5));
            array.push_back(load(v[name], i));
          }
        }
      }
      if (alias && !aliased) continue;
      c.backward(ctx, v, accumulate);
      bench.expect_guards();
      bench.expect_inputs_unchanged("");
      for (const GradientSpec& g : c.gradients) {
        std::vector<double> want = bench.numeric_gradient(g.of);
        if (const auto it = before.find(g.of); it != before.end()) {
          for (size_t i = 0; i < want.size(); ++i) want[i] += it->second[i];
        }
        bench.expect_near("d" + g.of, v["d" + g.of], want, g.accuracy);
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(OpTest, Forward) {
  const OpCase& c = *GetParam();
  if (!c.forward) GTEST_SKIP() << "no forward of its own";
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(name_of(isa));
    check_forward(c, isa);
  }
}

TEST_P(OpTest, Gradient) {
  const OpCase& c = *GetParam();
  if (!c.backward) GTEST_SKIP() << "no backward";
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(name_of(isa));
    check_backward(c, isa);
  }
}

// The dry device takes the same arguments without data, allocates the same workspace and accounts a cost.
TEST_P(OpTest, Dry) {
  const OpCase& c = *GetParam();
  const Device cpu = Device::cpu(kThreads);
  Machine real(cpu), dry(Device::dry(cpu));
  Context real_ctx = real.context(), dry_ctx = dry.context();
  Bench bench(c);
  bench.prepare(3);
  Views v = bench.views(), hollow = v;
  for (auto& [name, view] : hollow) view.data = nullptr;
  if (c.forward) {
    c.forward(dry_ctx, hollow);
    c.forward(real_ctx, v);
  }
  if (c.backward) {
    c.backward(dry_ctx, hollow, false);
    c.backward(real_ctx, v, false);
  }
  EXPECT_EQ(dry.arena.peak(), real.arena.peak());
  ASSERT_FALSE(dry.stream.totals().empty());
  for (const auto& [op, totals] : dry.stream.totals()) {
    EXPECT_GT(totals.flops + totals.bytes, 0) << op << " costs nothing";
    EXPECT_EQ(totals.calls, real.stream.totals().at(op).calls) << op;
  }
}

std::vector<const OpCase*> checked_cases() {
  std::vector<const OpCase*> cases;
  for (const OpCase& c : op_cases()) {
    if (!c.bench) cases.push_back(&c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Table, OpTest, testing::ValuesIn(checked_cases()), [](const auto& info) {
  std::string name = info.param->name;
  for (char& ch : name) {
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return name;
});

/// Bytes a second that all cores read and write in a long y[i] = a[i] + b[i].
double streaming_bandwidth() {
  constexpr int64_t kCount = int64_t{1} << 25;
  const MemoryBlock block(3 * kCount * sizeof(float));
  float *a = static_cast<float*>(block.data()), *b = a + kCount, *y = b + kCount;
  double best = 0;
  for (int repeat = 0; repeat < 6; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel for simd num_threads(usable_cores()) schedule(static)
    for (int64_t i = 0; i < kCount; ++i) y[i] = a[i] + b[i];
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(block.bytes()) / seconds.count());
  }
  return best;
}

/// Times every bench row whose name holds `filter`, beside this machine's memory bandwidth.
void run_benchmarks(std::string_view filter) {
  const double bandwidth = streaming_bandwidth();
  fmt::print("streaming bandwidth {:.1f} GB/s\n", bandwidth * 1e-9);
  Machine machine(Device::cpu(usable_cores()));
  machine.block = MemoryBlock(size_t{4} << 30);
  machine.arena = Arena(machine.block.data(), machine.block.bytes());
  machine.stream.profiled = true;
  for (const OpCase& c : op_cases()) {
    if (!c.bench || c.name.find(filter) == std::string::npos) continue;
    Bench bench(c);
    bench.prepare(5);
    Views v = bench.views();
    Context ctx = machine.context();
    std::map<std::string, double> best;
    for (int repeat = 0; repeat < 7; ++repeat) {
      machine.stream.clear_totals();
      if (c.forward) c.forward(ctx, v);
      if (c.backward) c.backward(ctx, v, false);
      for (const auto& [op, totals] : machine.stream.totals()) {
        auto [it, fresh] = best.emplace(op, totals.seconds);
        if (!fresh) it->second = std::min(it->second, totals.seconds);
      }
    }
    for (const auto& [op, seconds] : best) {
      const OpTotals& totals = machine.stream.totals().at(op);
      fmt::print("{:34} {:26} {:9.3f} ms {:8.1f} GFLOP/s {:7.1f} GB/s {:4.0f} %\n", c.name, op, seconds * 1e3,
                 totals.flops / seconds * 1e-9, totals.bytes / seconds * 1e-9,
                 100 * totals.bytes / seconds / bandwidth);
    }
  }
}

}  // namespace
}  // namespace yoke

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "--bench") {
    yoke::run_benchmarks(argc > 2 ? argv[2] : "");
    return 0;
  }
  std::string isas;
  for (const yoke::Isa isa : yoke::available_isas()) isas += " " + yoke::name_of(isa);
  std::cout << fmt::format("devices: cpu ({} ), dry; skipped: cuda (not built)\n", isas);
  return RUN_ALL_TESTS();
}
