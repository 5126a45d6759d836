#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

struct Settings {
  int64_t count;
  DType copy = DType::f32;  ///< f32: no compute copy
  float weight_decay = 0;
  int64_t step = 1;
  float gradient_scale = 1;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
};

constexpr float kRate = 0.01f, kBeta1 = 0.9f;

OpCase row(const Settings& s, bool bench = false) {
  OpCase c;
  c.name = fmt::format("adamw/{}/{}/decay{}/step{}/scale{}/eps{}", name_of(s.copy), s.count, s.weight_decay, s.step,
                       s.gradient_scale, s.epsilon);
  c.bench = bench;
  // What is updated in place is an output here, filled from what the inputs hold first.
  c.inputs = {{.name = "master0", .shape = {s.count}},
              {.name = "gradient", .shape = {s.count}, .low = -1 / s.gradient_scale, .high = 1 / s.gradient_scale},
              {.name = "m0", .shape = {s.count}, .low = -0.1, .high = 0.1},
              {.name = "v0", .shape = {s.count}, .low = 0, .high = 0.1}};
  c.outputs = {
      {.name = "master", .shape = {s.count}}, {.name = "m", .shape = {s.count}}, {.name = "v", .shape = {s.count}}};
  if (s.copy != DType::f32) c.outputs.push_back({.name = "weight", .dtype = s.copy, .shape = {s.count}});
  c.reference = [=](const Arrays& in, Arrays& out) {
    const double beta1 = kBeta1, beta2 = s.beta2, step = static_cast<double>(s.step);
    for (int64_t i = 0; i < s.count; ++i) {
      const double w = in.at("master0")[i], g = in.at("gradient")[i] * s.gradient_scale;
      const double m = beta1 * in.at("m0")[i] + (1 - beta1) * g;
      const double v = beta2 * in.at("v0")[i] + (1 - beta2) * g * g;
      const double m_hat = m / (1 - std::pow(beta1, step)), v_hat = v / (1 - std::pow(beta2, step));
      const double updated = w - kRate * (m_hat / (std::sqrt(v_hat) + s.epsilon) + s.weight_decay * w);
      out["m"][i] = m;
      out["v"][i] = v;
      out["master"][i] = updated;
      if (s.copy != DType::f32) out["weight"][i] = updated;
    }
  };
  c.forward = [=](Context& ctx, Views& v) {
    copy_data(v["master0"], v["master"]);
    copy_data(v["m0"], v["m"]);
    copy_data(v["v0"], v["v"]);
    adamw(ctx, {.master = v["master"],
                .weight = s.copy == DType::f32 ? TensorView{} : v["weight"],
                .gradient = v["gradient"],
                .m = v["m"],
                .v = v["v"],
                .learning_rate = kRate,
                .beta1 = kBeta1,
                .beta2 = s.beta2,
                .epsilon = s.epsilon,
                .weight_decay = s.weight_decay,
                .gradient_scale = s.gradient_scale,
                .step = s.step});
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
  all.push_back(row({.count = int64_t{1} << 25, .copy = DType::bf16, .weight_decay = 0.1f}, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
