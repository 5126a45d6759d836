// Stores of ranks that hold the same parameters: gradients are summed over them, and with ZeRO each keeps a shard of
// the optimizer's state (stage 1), of the gradients (2) and of the weights (3).
#pragma once

#include <optional>

#include "comm/parallel.h"
#include "model/store.h"
#include "model/units.h"

namespace yoke {

/// Full units of which a few are present at a time: two of each kind for the layers, so that the next layer's comes
/// while this one's is in use; rows outside the blocks have their own.
class UnitSlots {
 public:
  UnitSlots(Arena& arena, const char* name, const ParameterTable& table, const ParameterUnits& units,
            const UnitBuffers::TypeOf& type, MemoryKind kind);

  /// Which memory a unit takes its turn in.
  size_t slot_of(size_t unit) const { return slot_of_[unit]; }
  size_t size() const { return memory_.size(); }
  /// A unit in its slot, flat.
  TensorView unit(const ParameterUnits& units, size_t unit) const;
  TensorView row(const ParameterTable& table, const ParameterUnits& units, size_t row) const;
  ParameterBuffers rows(const ParameterTable& table, const ParameterUnits& units) const;

 private:
  std::vector<TensorView> memory_;  // bytes
  std::vector<size_t> slot_of_;
  std::vector<DType> type_;
};

/// Weights of which each rank holds a shard (stage 3).
class ShardedWeightStore : public WeightStore {
 public:
  /// All arguments have to outlive it.
  ShardedWeightStore(const ParameterTable& table, const ParameterUnits& units, const UnitBuffers& shards,
                     const UnitSlots& slots, Communicator& group);

  void begin(Context& ctx) override;
  void gather(Context& ctx, int64_t layer) override;
  void acquire(Context& ctx, int64_t layer) override;
  void release(int64_t layer) override;
  void changed() override;

 private:
  struct Slot {
    int64_t unit = -1;  ///< which one is in it, or comes
    bool in_use = false;
    Pending pending;
  };
  void gather_unit(Context& ctx, size_t unit);
  /// Units of a layer; -1: outside the blocks.
  std::vector<size_t> units_of(int64_t layer) const;

  const ParameterUnits& units_;
  const UnitBuffers& shards_;
  const UnitSlots& memory_;
  Communicator& group_;
  std::vector<Slot> slots_;
};

/// Whole gradients that are summed over the ranks after the step's last micro-batch: over all of them (stage 0), or
/// into each rank's shard (stage 1).
class ReducedGradientStore : public GradientStore {
 public:
  ReducedGradientStore(const ParameterTable& table, const ParameterUnits& units, const UnitBuffers& gradients,
                       const Parallel& parallel, bool sharded);

  void begin_step(Context& ctx, int64_t micro_batches) override;
  void notify(size_t row) override;
  void finish_step() override;

 private:
  const ParameterUnits& units_;
  const UnitBuffers& gradients_;
  const Parallel& parallel_;
  bool sharded_;
  Context* ctx_ = nullptr;
  std::vector<int64_t> missing_;  // of each unit: contributions of the step that are still to come
  std::vector<Pending> pending_;
};

/// Gradients that exist whole while backward writes them, then as shards (stages 2 and 3): reduced after every
/// micro-batch.
class ShardedGradientStore : public GradientStore {
 public:
  ShardedGradientStore(const ParameterTable& table, const ParameterUnits& units, const UnitSlots& slots,
                       const UnitBuffers& sums, const Parallel& parallel);

  void begin_step(Context& ctx, int64_t micro_batches) override;
  Slot get(size_t row) override;
  void notify(size_t row) override;
  void finish_step() override;

 private:
  struct InFlight {
    std::optional<size_t> unit;
    Pending pending;
  };
  /// Waits for what is on its way from a slot and adds it up.
  void collect(size_t slot);
  Communicator& group() const { return parallel_[Group::shard]; }

  const ParameterUnits& units_;
  const UnitSlots& memory_;
  const UnitBuffers& sums_;
  const Parallel& parallel_;
  Context* ctx_ = nullptr;
  std::vector<size_t> missing_;      // of each unit: rows of this micro-batch that are still to come
  std::vector<bool> has_sum_;        // of each unit
  std::vector<InFlight> in_flight_;  // of each slot
};

}  // namespace yoke
