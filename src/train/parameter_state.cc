#include "train/parameter_state.h"

#include "train/engine.h"

namespace yoke {

namespace {

ParameterUnits make_units(const ParameterTable& table, int zero, const Parallel& parallel) {
  if (parallel[Group::replicas].alone()) return ParameterUnits(table);
  return {table, zero > 0 ? parallel[Group::shard].size() : 1};
}

/// Memory that gradients share which are consumed as soon as they are there. The gradient of a tied embedding lives
/// from the loss to the end of backward, so it has its own.
ParameterBuffers make_consumed_gradients(Arena& arena, const ParameterTable& table, const UnitBuffers::TypeOf& type) {
  const auto has_own = [&](size_t i) { return i == table.embedding() && i == table.head(); };
  int64_t shared_bytes = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto size = static_cast<int64_t>(size_of(type(table[i])));
    const int64_t bytes = checked_product(table[i].shape.elements(), size, "bytes of a gradient");
    if (!has_own(i)) shared_bytes = std::max(shared_bytes, bytes);
  }
  TensorView shared;
  if (shared_bytes > 0) shared = arena.allocate("gradient", DType::u8, {shared_bytes}, MemoryKind::gradients);
  std::vector<TensorView> views;
  for (size_t i = 0; i < table.size(); ++i) {
    const DType dtype = type(table[i]);
    views.push_back(has_own(i) ? arena.allocate("gradient", dtype, table[i].shape, MemoryKind::gradients)
                               : TensorView(shared.data, dtype, table[i].shape));
  }
  return ParameterBuffers(std::move(views));
}

}  // namespace

ParameterState::ParameterState(Arena& arena, const ParameterTable& table, const EngineOptions& options,
                               const Optimizer& optimizer, const Parallel& parallel)
    : table_(table),
      parallel_(parallel),
      units_(make_units(table, options.zero, parallel)),
      stage_(units_.shards() > 1 ? options.zero : 0),
      shard_(stage_ > 0 ? parallel[Group::shard].rank() : 0) {
  lay_out_weights(arena, options);
  lay_out_gradients(arena, options);
  optimizer_state_ = std::make_unique<OptimizerState>(arena, optimizer, table, master_pieces_);
}

ParameterBuffers ParameterState::pieces(const UnitBuffers& buffers) const {
  std::vector<TensorView> views;
  for (size_t row = 0; row < table_.size(); ++row) views.push_back(buffers.piece(table_, units_, row, shard_));
  return ParameterBuffers(std::move(views));
}

void ParameterState::lay_out_weights(Arena& arena, const EngineOptions& options) {
  const auto allocate = [&](const char* name, DType dtype, MemoryKind kind, bool sharded) {
    const auto type = [dtype](const ParameterRow&) { return dtype; };
    return sharded ? UnitBuffers(arena, name, table_, units_, type, kind, shard_)
                   : UnitBuffers(arena, name, table_, units_, type, kind);
  };
  has_copies_ = options.has_copies();
  const bool whole = stage_ < 3;
  // Master weights are the optimizer's; where blocks compute with them they are weights, too.
  const bool shards_master = has_copies_ ? stage_ >= 1 : !whole;
  master_ = options.fp32_master ? allocate("master weight", DType::f32, MemoryKind::master, shards_master)
                                : allocate("weight", DType::bf16, MemoryKind::weights, shards_master);
  master_pieces_ = pieces(master_);
  if (has_copies_) {
    copies_ = allocate("weight", options.compute, MemoryKind::weights, !whole);
    copy_pieces_ = pieces(copies_);
  } else {
    copy_pieces_ = ParameterBuffers(std::vector<TensorView>(table_.size()));
  }
  const UnitBuffers& weights = has_copies_ ? copies_ : master_;
  if (whole) {
    std::vector<TensorView> rows;
    for (size_t row = 0; row < table_.size(); ++row) rows.push_back(weights.row(table_, units_, row));
    weight_store_ = std::make_unique<WeightStore>(ParameterBuffers(std::move(rows)));
  } else {
    const DType dtype = weights.unit(0).dtype;
    weight_slots_.emplace(
        arena, "gathered weights", table_, units_, [dtype](const ParameterRow&) { return dtype; }, MemoryKind::weights);
    weight_store_ =
        std::make_unique<ShardedWeightStore>(table_, units_, weights, *weight_slots_, parallel_[Group::shard]);
  }
}

void ParameterState::lay_out_gradients(Arena& arena, const EngineOptions& options) {
  const auto type = [&](const ParameterRow& row) { return row.decays() ? options.gradients : DType::f32; };
  if (options.consume_gradients) {
    gradient_pieces_ = make_consumed_gradients(arena, table_, type);
    gradient_store_ = std::make_unique<GradientStore>(gradient_pieces_);
    return;
  }
  if (stage_ < 2) {
    gradients_ = UnitBuffers(arena, "gradient", table_, units_, type, MemoryKind::gradients);
  } else {
    gradient_slots_.emplace(arena, "gradients of a layer", table_, units_, type, MemoryKind::gradients);
    gradients_ = UnitBuffers(arena, "gradient", table_, units_, type, MemoryKind::gradients, shard_);
  }
  gradient_pieces_ = pieces(gradients_);
  if (parallel_[Group::replicas].alone()) {
    gradient_store_ = std::make_unique<GradientStore>(gradient_pieces_);
  } else if (stage_ < 2) {
    gradient_store_ = std::make_unique<ReducedGradientStore>(table_, units_, gradients_, parallel_, stage_ == 1);
  } else {
    gradient_store_ = std::make_unique<ShardedGradientStore>(table_, units_, *gradient_slots_, gradients_, parallel_);
  }
}

void ParameterState::weights_changed(Context& ctx) {
  weight_store_->changed();
  if (stage_ != 1 && stage_ != 2) return;
  const UnitBuffers& weights = has_copies_ ? copies_ : master_;
  Communicator& group = parallel_[Group::shard];
  std::vector<Pending> pending;
  for (size_t u = 0; u < units_.size(); ++u) {
    pending.push_back(group.start(ctx, {.kind = CollectiveKind::all_gather,
                                        .input = weights.shard(units_, u, shard_),
                                        .output = weights.unit(u),
                                        .what = "updated weights",
                                        .layer = units_[u].layer}));
  }
  for (const Pending& p : pending) group.wait(ctx, p);
}

}  // namespace yoke
