#include "model/sharded_store.h"

#include <algorithm>
#include <map>

#include "device/transfer.h"
#include "ops/elementwise/elementwise.h"

namespace yoke {

UnitSlots::UnitSlots(Arena& arena, const char* name, const ParameterTable& table, const ParameterUnits& units,
                     const UnitBuffers::TypeOf& type, MemoryKind kind) {
  // Layers take turns by number, so that neighbours are never in each other's way.
  std::map<std::pair<bool, int64_t>, size_t> shared;  // (matrices, turn) to slot
  std::vector<int64_t> bytes;
  for (size_t u = 0; u < units.size(); ++u) {
    const ParameterUnit& unit = units[u];
    type_.push_back(type(table[unit.rows[0]]));
    const int64_t size = checked_product(unit.elements, static_cast<int64_t>(size_of(type_.back())), "bytes of a unit");
    size_t slot = bytes.size();
    if (unit.layer >= 0) slot = shared.try_emplace({unit.matrices, unit.layer % 2}, slot).first->second;
    if (slot == bytes.size()) bytes.push_back(0);
    bytes[slot] = std::max(bytes[slot], size);
    slot_of_.push_back(slot);
  }
  for (const int64_t size : bytes) memory_.push_back(arena.allocate(name, DType::u8, {size}, kind));
}

TensorView UnitSlots::unit(const ParameterUnits& units, size_t unit) const {
  return {memory_[slot_of_[unit]].data, type_[unit], {units[unit].elements}};
}

TensorView UnitSlots::row(const ParameterTable& table, const ParameterUnits& units, size_t row) const {
  const Shape& shape = table[row].shape;
  return reshape(slice(unit(units, units.unit_of(row)), units.offset_of(row), shape.elements()), shape);
}

ParameterBuffers UnitSlots::rows(const ParameterTable& table, const ParameterUnits& units) const {
  std::vector<TensorView> views;
  for (size_t r = 0; r < table.size(); ++r) views.push_back(row(table, units, r));
  return ParameterBuffers(std::move(views));
}

ShardedWeightStore::ShardedWeightStore(const ParameterTable& table, const ParameterUnits& units,
                                       const UnitBuffers& shards, const UnitSlots& slots, Communicator& group)
    : WeightStore(slots.rows(table, units)),
      units_(units),
      shards_(shards),
      memory_(slots),
      group_(group),
      slots_(slots.size()) {}

std::vector<size_t> ShardedWeightStore::units_of(int64_t layer) const {
  std::vector<size_t> found;
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].layer == layer) found.push_back(u);
  }
  return found;
}

void ShardedWeightStore::gather_unit(Context& ctx, size_t unit) {
  Slot& slot = slots_[memory_.slot_of(unit)];
  if (slot.unit == static_cast<int64_t>(unit) || slot.in_use) return;
  group_.wait(ctx, slot.pending);  // what was gathered ahead and never used
  slot.unit = static_cast<int64_t>(unit);
  slot.pending = group_.start(ctx, {.kind = CollectiveKind::all_gather,
                                    .input = shards_.unit(unit),
                                    .output = memory_.unit(units_, unit),
                                    .what = "weights",
                                    .layer = units_[unit].layer});
}

void ShardedWeightStore::begin(Context& ctx) { acquire(ctx, -1); }

void ShardedWeightStore::gather(Context& ctx, int64_t layer) {
  for (const size_t unit : units_of(layer)) gather_unit(ctx, unit);
}

void ShardedWeightStore::acquire(Context& ctx, int64_t layer) {
  gather(ctx, layer);
  for (const size_t unit : units_of(layer)) {
    Slot& slot = slots_[memory_.slot_of(unit)];
    YOKE_ASSERT(slot.unit == static_cast<int64_t>(unit), "layer {} needs memory that is in use", layer);
    group_.wait(ctx, slot.pending);
    slot.pending = {};
    slot.in_use = true;
  }
}

void ShardedWeightStore::release(int64_t layer) {
  for (const size_t unit : units_of(layer)) slots_[memory_.slot_of(unit)].in_use = false;
}

void ShardedWeightStore::changed() {
  for (Slot& slot : slots_) slot = {.pending = slot.pending};
}

ReducedGradientStore::ReducedGradientStore(const ParameterTable& table, const ParameterUnits& units,
                                           const UnitBuffers& gradients, const Parallel& parallel, bool sharded)
    : GradientStore([&] {
        std::vector<TensorView> views;
        for (size_t r = 0; r < table.size(); ++r) views.push_back(gradients.row(table, units, r));
        return ParameterBuffers(std::move(views));
      }()),
      units_(units),
      gradients_(gradients),
      parallel_(parallel),
      sharded_(sharded) {}

void ReducedGradientStore::begin_step(Context& ctx, int64_t micro_batches) {
  GradientStore::begin_step(ctx, micro_batches);
  ctx_ = &ctx;
  pending_.assign(units_.size(), {});
  missing_.clear();
  for (size_t u = 0; u < units_.size(); ++u) {
    missing_.push_back(micro_batches * static_cast<int64_t>(units_[u].rows.size()));
  }
}

void ReducedGradientStore::notify(size_t row) {
  const size_t unit = units_.unit_of(row);
  YOKE_ASSERT(missing_[unit] > 0, "row {} has more contributions than micro-batches", row);
  if (--missing_[unit] > 0) return;
  Collective sum{.input = gradients_.unit(unit), .what = "gradients", .layer = units_[unit].layer};
  if (sharded_) {
    sum.kind = CollectiveKind::reduce_scatter;
    sum.output = gradients_.shard(units_, unit, parallel_[Group::shard].rank());
  }
  pending_[unit] = parallel_[sharded_ ? Group::shard : Group::replicas].start(*ctx_, sum);
}

void ReducedGradientStore::finish_step() {
  Communicator& group = parallel_[sharded_ ? Group::shard : Group::replicas];
  Communicator& copies = parallel_[Group::replicate];
  for (size_t u = units_.size(); u-- > 0;) {
    YOKE_ASSERT(missing_[u] == 0, "unit {} waits for {} contributions", u, missing_[u]);
    group.wait(*ctx_, pending_[u]);
    if (!sharded_ || copies.alone()) continue;
    pending_[u] = copies.start(*ctx_, {.input = gradients_.shard(units_, u, parallel_[Group::shard].rank()),
                                       .what = "gradients of copies",
                                       .layer = units_[u].layer});
  }
  for (size_t u = units_.size(); sharded_ && !copies.alone() && u-- > 0;) copies.wait(*ctx_, pending_[u]);
}

ShardedGradientStore::ShardedGradientStore(const ParameterTable& table, const ParameterUnits& units,
                                           const UnitSlots& slots, const UnitBuffers& sums, const Parallel& parallel)
    : GradientStore(slots.rows(table, units)),
      units_(units),
      memory_(slots),
      sums_(sums),
      parallel_(parallel),
      in_flight_(slots.size()) {}

void ShardedGradientStore::begin_step(Context& ctx, int64_t micro_batches) {
  GradientStore::begin_step(ctx, micro_batches);
  ctx_ = &ctx;
  has_sum_.assign(units_.size(), false);
  missing_.clear();
  for (size_t u = 0; u < units_.size(); ++u) missing_.push_back(units_[u].rows.size());
}

GradientStore::Slot ShardedGradientStore::get(size_t row) {
  const size_t unit = units_.unit_of(row);
  collect(memory_.slot_of(unit));
  return GradientStore::get(row);
}

void ShardedGradientStore::notify(size_t row) {
  const size_t unit = units_.unit_of(row);
  if (--missing_[unit] > 0) return;
  missing_[unit] = units_[unit].rows.size();
  for (const size_t member : units_[unit].rows) forget(member);
  const TensorView whole = memory_.unit(units_, unit);
  const int64_t count = units_.shard_elements(unit);
  in_flight_[memory_.slot_of(unit)] = {unit,
                                       group().start(*ctx_, {.kind = CollectiveKind::reduce_scatter,
                                                             .input = whole,
                                                             .output = slice(whole, group().rank() * count, count),
                                                             .what = "gradients",
                                                             .layer = units_[unit].layer})};
}

void ShardedGradientStore::collect(size_t slot) {
  InFlight& flight = in_flight_[slot];
  if (!flight.unit) return;
  const size_t unit = *flight.unit;
  group().wait(*ctx_, flight.pending);
  flight = {};
  const int64_t count = units_.shard_elements(unit);
  const TensorView part = slice(memory_.unit(units_, unit), group().rank() * count, count), &sum = sums_.unit(unit);
  if (has_sum_[unit]) {
    add(*ctx_, {.a = sum, .b = part, .y = sum});
  } else {
    copy(*ctx_, part, sum);
  }
  has_sum_[unit] = true;
}

void ShardedGradientStore::finish_step() {
  for (size_t slot = 0; slot < in_flight_.size(); ++slot) collect(slot);
  Communicator& copies = parallel_[Group::replicate];
  if (copies.alone()) return;
  std::vector<Pending> pending;
  for (size_t u = 0; u < units_.size(); ++u) {
    pending.push_back(
        copies.start(*ctx_, {.input = sums_.unit(u), .what = "gradients of copies", .layer = units_[u].layer}));
  }
  for (const Pending& p : pending) copies.wait(*ctx_, p);
}

}  // namespace yoke
