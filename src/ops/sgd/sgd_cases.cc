#include "ops/moment_reference.h"
#include "ops/sgd/sgd.h"

namespace yoke {
namespace {

constexpr RandomStream kRandom{6, uint64_t{9} << 24 | 1};

struct Settings {
  int64_t count;
  DType copy = DType::f32;  ///< f32: no compute copy
  DType master = DType::f32;
  std::optional<DType> moment = DType::f32;  ///< nothing: no momentum
  float learning_rate = 0.01f, momentum = 0.9f, weight_decay = 0.1f;
};

void reference(const Settings& s, const Arrays& in, Arrays& out) {
  const bool codes = s.moment == DType::u8;
  std::vector<double> m(static_cast<size_t>(s.count));
  if (s.moment) m = codes ? reference_decode(in.at("m0"), in.at("m_scale0"), true) : in.at("m0");
  for (size_t i = 0; i < m.size(); ++i) {
    m[i] = (s.moment ? s.momentum : 0.0) * m[i] + in.at("gradient")[i] * 0.5;
    const double w = in.at("master0")[i];
    const double updated = w - s.learning_rate * (m[i] + s.weight_decay * w);
    out["master"][i] = s.master == DType::bf16 ? reference_round(updated, kRandom, i, 1, 0) : updated;
    if (s.copy != DType::f32) out["weight"][i] = updated;
    if (s.moment == DType::bf16) m[i] = reference_round(m[i], kRandom, i, 0, 0);
  }
  if (codes) {
    reference_encode(m, true, out["m"], out["m_scale"]);
  } else if (s.moment) {
    out["m"] = m;
  }
}

OpCase row(const Settings& s, bool bench = false) {
  OpCase c;
  c.name = fmt::format("sgd/{}_master/{}/{}/moment_{}", name_of(s.master), name_of(s.copy), s.count,
                       s.moment ? name_of(*s.moment) : "none");
  c.bench = bench;
  // On this grid rates and momentum that are powers of two compute exactly, so that what is rounded at random is known.
  const auto grid = [](int64_t factor) {
    return [=](int64_t i) { return static_cast<double>((i * factor + 5) % 255 - 127) / 128; };
  };
  c.inputs = {{.name = "master0", .dtype = s.master, .shape = {s.count}, .value = grid(104729)},
              {.name = "gradient", .shape = {s.count}, .value = grid(7919)}};
  std::optional<DType> exact;
  if (s.master == DType::bf16) exact = DType::i64;
  c.outputs = {{.name = "master", .dtype = s.master, .shape = {s.count}, .accuracy = exact}};
  if (s.copy != DType::f32) c.outputs.push_back({.name = "weight", .dtype = s.copy, .shape = {s.count}});
  if (s.moment == DType::u8) {
    c.inputs.push_back({.name = "m0", .dtype = DType::u8, .shape = {s.count}, .value = [](int64_t i) {
                          return static_cast<double>(i * 31 % 256);
                        }});
    c.inputs.push_back({.name = "m_scale0", .shape = {moment_blocks(s.count)}, .low = 0});
    c.outputs.push_back({.name = "m", .dtype = DType::u8, .shape = {s.count}});
    c.outputs.push_back({.name = "m_scale", .shape = {moment_blocks(s.count)}});
  } else if (s.moment) {
    c.inputs.push_back({.name = "m0", .dtype = *s.moment, .shape = {s.count}, .value = grid(31)});
    c.outputs.push_back({.name = "m", .dtype = *s.moment, .shape = {s.count}, .accuracy = exact});
  }
  c.reference = [=](const Arrays& in, Arrays& out) { reference(s, in, out); };
  c.forward = [=](Context& ctx, Views& v) {
    for (const char* name : {"master", "m", "m_scale"}) {
      if (v.contains(name)) copy_data(v[fmt::format("{}0", name)], v[name]);
    }
    sgd(ctx, {.weights = {v["master"], s.copy == DType::f32 ? TensorView{} : v["weight"]},
              .gradient = v["gradient"],
              .m = s.moment ? moment_of(v, "m") : MomentTensor{},
              .learning_rate = s.learning_rate,
              .momentum = s.momentum,
              .weight_decay = s.weight_decay,
              .gradient_scale = 0.5f,
              .random = kRandom});
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const int64_t count : {int64_t{1}, int64_t{300}, int64_t{40003}}) {
    for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
      all.push_back(row({.count = count, .copy = copy}));
      all.push_back(row({.count = count, .copy = copy, .moment = std::nullopt}));
    }
    // Of tens of thousands of elements one would lie so close to a boundary that fp32 and fp64 choose other codes.
    all.push_back(row({.count = std::min(count, int64_t{4099}), .moment = DType::u8}));
    all.push_back(row({.count = count,
                       .master = DType::bf16,
                       .moment = DType::bf16,
                       .learning_rate = 0.125f,
                       .momentum = 0.5f,
                       .weight_decay = 0.25f}));
  }
  all.push_back(row({.count = int64_t{1} << 25, .copy = DType::bf16}, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
