// All that a rank keeps of the parameters while it trains: weights, gradients and the optimizer's state, whole or the
// rank's shard of them (ZeRO), and the stores through which blocks see them.
#pragma once

#include <memory>

#include "comm/parallel.h"
#include "model/sharded_store.h"
#include "train/optimizer.h"

namespace yoke {

struct EngineOptions;

class ParameterState {
 public:
  /// `table`, `parallel` and the arena have to outlive it.
  ParameterState(Arena& arena, const ParameterTable& table, const EngineOptions& options, const Optimizer& optimizer,
                 const Parallel& parallel);
  ParameterState(const ParameterState&) = delete;
  ParameterState& operator=(const ParameterState&) = delete;

  /// What this rank updates of each row: its shard's elements, flat, absent where that is nothing; all of them, in the
  /// row's shape, where nothing is sharded. Master weights are f32, or bf16 where there is no fp32 master.
  const ParameterBuffers& master() const { return master_pieces_; }
  /// The same elements in the type that blocks compute in; absent where that is the master itself.
  const ParameterBuffers& copies() const { return copy_pieces_; }
  /// The same elements of the gradients, after GradientStore::finish_step().
  const ParameterBuffers& gradients() const { return gradient_pieces_; }
  const OptimizerState& optimizer() const { return *optimizer_state_; }
  /// Which elements of a row they are.
  ElementRange owned(size_t row) const { return units_.owned(row, shard_); }
  /// Ranks that hold the other elements.
  int shards() const { return units_.shards(); }

  WeightStore& weights() const { return *weight_store_; }
  GradientStore& gradient_store() const { return *gradient_store_; }

  /// To be called when master and copies have changed: every rank gets all weights, or forgets those that it gathered.
  void weights_changed(Context& ctx);

 private:
  void lay_out_weights(Arena& arena, const EngineOptions& options);
  void lay_out_gradients(Arena& arena, const EngineOptions& options);
  ParameterBuffers pieces(const UnitBuffers& buffers) const;

  const ParameterTable& table_;
  const Parallel& parallel_;
  ParameterUnits units_;
  int stage_;  ///< of ZeRO; 0 where nothing is sharded
  int shard_;
  bool has_copies_ = false;
  UnitBuffers master_, copies_, gradients_;
  std::optional<UnitSlots> weight_slots_, gradient_slots_;
  ParameterBuffers master_pieces_, copy_pieces_, gradient_pieces_;
  std::unique_ptr<OptimizerState> optimizer_state_;
  std::unique_ptr<WeightStore> weight_store_;
  std::unique_ptr<GradientStore> gradient_store_;
};

}  // namespace yoke
