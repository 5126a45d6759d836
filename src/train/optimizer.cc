#include "train/optimizer.h"

#include "ops/elementwise/elementwise.h"
#include "train/optimizer_moments.h"

namespace yoke {

void MomentFormat::add(std::vector<StateRow>& state, const MomentNames& names, const ParameterRow& parameter,
                       const Shape& held) const {
  // Of the whole parameter, so that it doesn't depend on how many ranks share it.
  const bool quantized = parameter.decays() && parameter.whole.elements() >= kSmallestQuantized;
  if (format_ == MomentsFormat::bf16) {
    state.push_back({names.values, names.label, DType::bf16, held});
  } else if (format_ == MomentsFormat::int8 && quantized) {
    state.push_back({names.values, names.label, DType::u8, held});
    state.push_back({names.scale, names.label, DType::f32, {(held.elements() + kMomentBlock - 1) / kMomentBlock}});
  } else {
    state.push_back({names.values, names.label, DType::f32, held});
  }
}

MomentTensor take_moment(std::span<const TensorView>& state) {
  MomentTensor moment{flat(state[0]), {}};
  const bool scaled = moment.values.dtype == DType::u8;
  if (scaled) moment.scale = state[1];
  state = state.subspan(scaled ? 2 : 1);
  return moment;
}

OptimizerState::OptimizerState(Arena& arena, const Optimizer& optimizer, const ParameterTable& parameters,
                               const ParameterBuffers& pieces) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    first_.push_back(tensors_.size());
    if (pieces[i].absent()) continue;
    for (const StateRow& row : optimizer.state(parameters[i], pieces[i].shape)) {
      tensors_.push_back({row, i, arena.allocate(row.label, row.dtype, row.shape, MemoryKind::moments)});
      views_.push_back(tensors_.back().view);
    }
  }
  first_.push_back(tensors_.size());
}

std::span<const TensorView> OptimizerState::of(size_t parameter) const {
  return std::span(views_).subspan(first_[parameter], first_[parameter + 1] - first_[parameter]);
}

void OptimizerState::clear(Context& ctx) const {
  for (const TensorView& view : views_) fill(ctx, {.y = view, .value = 0});
}

}  // namespace yoke
