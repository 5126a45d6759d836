// The optimizers: each says what it keeps, and hands one parameter to its operation.
#include "ops/adafactor/adafactor.h"
#include "ops/adamw/adamw.h"
#include "ops/muon/muon.h"
#include "ops/sgd/sgd.h"
#include "train/optimizer_moments.h"

namespace yoke {

namespace {

/// Of the tensor that the tensor axis divides; nothing where this rank has all of it.
ElementPlaces places_of(const ParameterRow& row) {
  if (row.shape == row.whole) return {};
  ElementPlaces places{.cols = row.shape_cols(),
                       .whole_cols = row.whole.rank() == 1 ? 1 : row.whole.cols(),
                       .first_col = row.first_col,
                       .ranges = static_cast<int>(row.parts.size())};
  YOKE_ASSERT(places.ranges <= ElementPlaces::kMostRanges, "{} has {} parts", row.name, row.parts.size());
  for (size_t i = 0; i < row.parts.size(); ++i) places.range[i] = {row.parts[i].row, row.parts[i].whole_row};
  return places;
}

class AdamWOptimizer : public Optimizer {
 public:
  explicit AdamWOptimizer(MomentsFormat moments) : moments_(moments) {}

  std::vector<StateRow> state(const ParameterRow& parameter, const Shape& held) const override {
    std::vector<StateRow> state;
    moments_.add(state, kFirstMoment, parameter, held);
    moments_.add(state, kSecondMoment, parameter, held);
    return state;
  }

  void update(Context& ctx, const ParameterUpdate& u) const override {
    std::span<const TensorView> state = u.state;
    const MomentTensor m = take_moment(state), v = take_moment(state);
    adamw(ctx, {.weights = flat(u.weights),
                .gradient = flat(u.gradient),
                .m = m,
                .v = v,
                .learning_rate = u.learning_rate(),
                .beta1 = static_cast<float>(u.options.beta1),
                .beta2 = static_cast<float>(u.options.beta2),
                .epsilon = static_cast<float>(u.options.epsilon),
                .weight_decay = u.weight_decay(),
                .gradient_scale = u.gradient_scale,
                .step = u.options.step,
                .random = u.random,
                .places = places_of(u.parameter)});
  }

 private:
  MomentFormat moments_;
};

class SgdOptimizer : public Optimizer {
 public:
  explicit SgdOptimizer(const OptimizerOptions& options)
      : moments_(options.moments), momentum_(static_cast<float>(options.momentum)) {}

  std::vector<StateRow> state(const ParameterRow& parameter, const Shape& held) const override {
    std::vector<StateRow> state;
    if (momentum_ > 0) moments_.add(state, kMomentum, parameter, held);
    return state;
  }

  void update(Context& ctx, const ParameterUpdate& u) const override {
    std::span<const TensorView> state = u.state;
    sgd(ctx, {.weights = flat(u.weights),
              .gradient = flat(u.gradient),
              .m = state.empty() ? MomentTensor{} : take_moment(state),
              .learning_rate = u.learning_rate(),
              .momentum = momentum_,
              .weight_decay = u.weight_decay(),
              .gradient_scale = u.gradient_scale,
              .random = u.random,
              .places = places_of(u.parameter)});
  }

 private:
  MomentFormat moments_;
  float momentum_;
};

/// Muon for the matrices of blocks; embedding, head, norms and biases have AdamW.
class MuonOptimizer : public Optimizer {
 public:
  explicit MuonOptimizer(const OptimizerOptions& options)
      : adamw_(options.moments), moments_(options.moments), momentum_(static_cast<float>(options.momentum)) {}

  std::vector<StateRow> state(const ParameterRow& parameter, const Shape& held) const override {
    if (parameter.kind != ParameterRow::Kind::matrix) return adamw_.state(parameter, held);
    YOKE_ASSERT(held == parameter.shape, "Muon needs all of {}", parameter.name);
    std::vector<StateRow> state;
    moments_.add(state, kMomentum, parameter, held);
    return state;
  }

  void update(Context& ctx, const ParameterUpdate& u) const override {
    if (u.parameter.kind != ParameterRow::Kind::matrix) return adamw_.update(ctx, u);
    std::vector<int64_t> parts;  // q, k and v are matrices of their own, gate and up too
    for (const ParameterPart& part : u.parameter.parts) parts.push_back(part.rows);
    std::span<const TensorView> state = u.state;
    muon(ctx, {.weights = u.weights,
               .gradient = u.gradient,
               .m = take_moment(state),
               .parts = parts,
               .learning_rate = u.learning_rate(),
               .momentum = momentum_,
               .weight_decay = u.weight_decay(),
               .gradient_scale = u.gradient_scale,
               .random = u.random});
  }

 private:
  AdamWOptimizer adamw_;
  MomentFormat moments_;
  float momentum_;
};

/// Parts of fused tensors are tensors of their own: each has its columns and its limit on the update.
class AdafactorOptimizer : public Optimizer {
 public:
  std::vector<StateRow> state(const ParameterRow& parameter, const Shape& held) const override {
    YOKE_ASSERT(held == parameter.shape, "Adafactor needs all of {}", parameter.name);
    const char* label = "second moment";
    if (parameter.shape.rank() == 1) return {{kSecondMoment.values, label, DType::f32, parameter.shape}};
    const auto parts = static_cast<int64_t>(parameter.parts.size());
    return {{"moments.rows", label, DType::f32, {parameter.shape.rows()}},
            {"moments.columns", label, DType::f32, {parts, parameter.shape.cols()}}};
  }

  void update(Context& ctx, const ParameterUpdate& u) const override {
    const bool vector = u.parameter.shape.rank() == 1;
    for (size_t i = 0; i < u.parameter.parts.size(); ++i) {
      const ParameterPart& part = u.parameter.parts[i];
      const auto slice = [&](const TensorView& t) {
        if (t.absent()) return t;
        return vector ? columns(reshape(t, {1, t.elements()}), part.row, part.rows) : rows(t, part.row, part.rows);
      };
      Adafactor args{.weights = {slice(u.weights.master), slice(u.weights.copy)},
                     .gradient = slice(u.gradient),
                     .learning_rate = u.learning_rate(),
                     .weight_decay = u.weight_decay(),
                     .gradient_scale = u.gradient_scale,
                     .step = u.options.step,
                     .random = {u.random.seed, u.random.stream | static_cast<uint64_t>(i) << kPartBit}};
      if (vector) {
        args.v = slice(u.state[0]);
      } else {
        args.row = columns(reshape(u.state[0], {1, u.state[0].elements()}), part.row, part.rows);
        args.col = rows(u.state[1], static_cast<int64_t>(i), 1);
      }
      adafactor(ctx, args);
    }
  }
};

}  // namespace

std::unique_ptr<const Optimizer> make_optimizer(const OptimizerOptions& options) {
  switch (options.kind) {
    case OptimizerKind::adamw:
      return std::make_unique<AdamWOptimizer>(options.moments);
    case OptimizerKind::muon:
      return std::make_unique<MuonOptimizer>(options);
    case OptimizerKind::adafactor:
      return std::make_unique<AdafactorOptimizer>();
    case OptimizerKind::sgd:
      return std::make_unique<SgdOptimizer>(options);
  }
  YOKE_ASSERT(false, "optimizer {}", static_cast<int>(options.kind));
}

}  // namespace yoke
