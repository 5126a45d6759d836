#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/moment_reference.h"

namespace yoke {
namespace {

struct Settings {
  int64_t count;
  DType copy = DType::f32;  ///< f32: no compute copy
  float weight_decay = 0;
  int64_t step = 1;
  float gradient_scale = 1;
  float beta1 = 0.9f, beta2 = 0.95f;
  float epsilon = 1e-8f;
  DType moments = DType::f32;
  DType gradient = DType::f32;
};

constexpr float kRate = 0.01f;
constexpr RandomStream kRandom{5, uint64_t{77} << 24 | 3};

AdamW arguments(const Settings& s, Views& v) {
  return {.weights = {v["master"], s.copy == DType::f32 ? TensorView{} : v["weight"]},
          .gradient = v["gradient"],
          .m = moment_of(v, "m"),
          .v = moment_of(v, "v"),
          .learning_rate = kRate,
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .epsilon = s.epsilon,
          .weight_decay = s.weight_decay,
          .gradient_scale = s.gradient_scale,
          .step = s.step,
          .random = kRandom};
}

/// What is updated in place is an output, filled from an input of the same name and a 0: first the moments, ...
void add_moments(OpCase& c, const Settings& s) {
  // On a grid, bf16 rows with betas of a half compute exactly, so that what is rounded at random is known to the bit.
  const auto grid = [](int64_t size, double unit) {
    return [=](int64_t i) { return static_cast<double>((i * 7919 + 13) % size) * unit; };
  };
  if (s.moments == DType::u8) {
    for (const char* name : {"m", "v"}) {
      const std::string scale = fmt::format("{}_scale", name);
      c.inputs.push_back(
          {.name = fmt::format("{}0", name), .dtype = DType::u8, .shape = {s.count}, .value = grid(256, 1)});
      c.inputs.push_back({.name = scale + "0", .shape = {moment_blocks(s.count)}, .low = 0, .high = 0.1});
      c.outputs.push_back({.name = name, .dtype = DType::u8, .shape = {s.count}});
      c.outputs.push_back({.name = scale, .shape = {moment_blocks(s.count)}});
    }
  } else if (s.moments == DType::bf16) {
    c.inputs.push_back({.name = "m0", .dtype = DType::bf16, .shape = {s.count}, .value = grid(255, 1.0 / 1024)});
    c.inputs.push_back({.name = "v0", .dtype = DType::bf16, .shape = {s.count}, .value = grid(251, 1.0 / 4096)});
    for (const char* name : {"m", "v"}) {
      c.outputs.push_back({.name = name, .dtype = DType::bf16, .shape = {s.count}, .accuracy = DType::i64});
    }
    c.inputs[1].value = [](int64_t i) { return static_cast<double>((i * 104729 + 5) % 2047 - 1023) / 1024; };
  } else {
    c.inputs.push_back({.name = "m0", .shape = {s.count}, .low = -0.1, .high = 0.1});
    c.inputs.push_back({.name = "v0", .shape = {s.count}, .low = 0, .high = 0.1});
    for (const char* name : {"m", "v"}) c.outputs.push_back({.name = name, .shape = {s.count}});
  }
}

void reference(const Settings& s, const Arrays& in, Arrays& out) {
  const double beta1 = s.beta1, beta2 = s.beta2, step = static_cast<double>(s.step);
  const bool codes = s.moments == DType::u8;
  auto m = codes ? reference_decode(in.at("m0"), in.at("m_scale0"), true) : in.at("m0");
  auto v = codes ? reference_decode(in.at("v0"), in.at("v_scale0"), false) : in.at("v0");
  for (size_t i = 0; i < m.size(); ++i) {
    const double w = in.at("master0")[i], g = in.at("gradient")[i] * s.gradient_scale;
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    const double m_hat = m[i] / (1 - std::pow(beta1, step)), v_hat = v[i] / (1 - std::pow(beta2, step));
    const double updated = w - kRate * (m_hat / (std::sqrt(v_hat) + s.epsilon) + s.weight_decay * w);
    out["master"][i] = updated;
    if (s.copy != DType::f32) out["weight"][i] = updated;
    if (s.moments == DType::bf16) {
      m[i] = reference_round(m[i], kRandom, i, 0, 0);
      v[i] = reference_round(v[i], kRandom, i, 0, 16);
    }
  }
  if (codes) {
    reference_encode(m, true, out["m"], out["m_scale"]);
    reference_encode(v, false, out["v"], out["v_scale"]);
  } else {
    out["m"] = m;
    out["v"] = v;
  }
}

OpCase row(const Settings& s, bool bench = false) {
  OpCase c;
  c.name = fmt::format("adamw/{}/{}/decay{}/step{}/scale{}/eps{}", name_of(s.copy), s.count, s.weight_decay, s.step,
                       s.gradient_scale, s.epsilon);
  if (s.moments != DType::f32) c.name += fmt::format("/{}_moments", s.moments == DType::u8 ? "int8" : "bf16");
  if (s.gradient != DType::f32) c.name += fmt::format("/{}_gradient", name_of(s.gradient));
  c.bench = bench;
  c.inputs = {{.name = "master0", .shape = {s.count}},
              {.name = "gradient",
               .dtype = s.gradient,
               .shape = {s.count},
               .low = -1 / s.gradient_scale,
               .high = 1 / s.gradient_scale}};
  c.outputs = {{.name = "master", .shape = {s.count}}};
  add_moments(c, s);
  if (s.copy != DType::f32) c.outputs.push_back({.name = "weight", .dtype = s.copy, .shape = {s.count}});
  c.reference = [=](const Arrays& in, Arrays& out) { reference(s, in, out); };
  c.forward = [=](Context& ctx, Views& v) {
    for (const char* name : {"master", "m", "v"}) copy_data(v[fmt::format("{}0", name)], v[name]);
    if (s.moments == DType::u8) {
      for (const char* name : {"m_scale", "v_scale"}) copy_data(v[fmt::format("{}0", name)], v[name]);
    }
    adamw(ctx, arguments(s, v));
  };
  return c;
}

/// bf16 weights and moments on another number of threads: the same bits.
OpCase any_threads(DType moments) {
  const Settings s{.count = 70003, .weight_decay = 0.1f, .moments = moments};
  OpCase c = row(s);
  c.name += "/threads";
  c.inputs[0].dtype = DType::bf16;
  c.outputs = {{.name = "differ", .dtype = DType::i32, .shape = {3}}};
  c.reference = [](const Arrays&, Arrays& out) { out["differ"].assign(3, 0.0); };
  c.forward = [=](Context& ctx, Views& v) {
    ArenaScope scope(ctx.arena);
    std::vector<std::string> first;
    const int all[] = {1, 3, 7};
    for (size_t run = 0; run < std::size(all); ++run) {
      const Device device = with_threads(ctx.device, all[run]);
      Context other{device, ctx.stream, ctx.arena};
      Views made = v;
      std::vector<std::string> names{"master", "m", "v"};
      if (moments == DType::u8) names.insert(names.end(), {"m_scale", "v_scale"});
      for (const std::string& name : names) {
        const TensorView& from = v[name + "0"];
        made[name] = ctx.arena.allocate("state", from.dtype, from.shape);
        copy_data(from, made[name]);
      }
      adamw(other, arguments(s, made));
      if (v["differ"].data == nullptr) continue;
      std::string bytes;
      for (const std::string& name : names) bytes.append(made[name].as<char>(), made[name].bytes());
      first.push_back(std::move(bytes));
      v["differ"].as<int32_t>()[run] = first[run] != first[0];
    }
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row({.count = 1, .copy = copy}));
    all.push_back(row({.count = 1001, .copy = copy, .weight_decay = 0.1f}));
    all.push_back(row({.count = 40003, .copy = copy, .weight_decay = 0.1f, .step = 1000, .gradient_scale = 0x1p-16f}));
    all.push_back(row({.count = 515, .copy = copy, .step = 1000, .beta2 = 0.999f, .epsilon = 0.5f}));
  }
  all.push_back(row({.count = 1001, .gradient = DType::bf16}));
  for (const int64_t count : {int64_t{1}, int64_t{255}, int64_t{1000}, int64_t{70003}}) {
    all.push_back(row({.count = count, .copy = DType::bf16, .weight_decay = 0.1f, .step = 9, .moments = DType::u8}));
    all.push_back(row({.count = count, .beta1 = 0.5f, .beta2 = 0.5f, .moments = DType::bf16}));
  }
  for (const DType moments : {DType::f32, DType::bf16, DType::u8}) {
    all.push_back(any_threads(moments));
    all.push_back(
        row({.count = int64_t{1} << 25, .copy = DType::bf16, .weight_decay = 0.1f, .moments = moments}, true));
  }
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
