#include "model/units.h"

#include <algorithm>

namespace yoke {

namespace {

int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

TensorView slice(const TensorView& flat, int64_t begin, int64_t count) {
  return reshape(columns(reshape(flat, {1, flat.elements()}), begin, count), {count});
}

ParameterUnits::ParameterUnits(const ParameterTable& table) : table_(table) {
  for (size_t row = 0; row < table.size(); ++row) {
    units_.push_back({.layer = table[row].layer,
                      .matrices = table[row].decays(),
                      .rows = {row},
                      .offsets = {0},
                      .elements = table[row].shape.elements()});
    unit_of_.push_back(row);
  }
}

ParameterUnits::ParameterUnits(const ParameterTable& table, int shards)
    : table_(table), shards_(shards), unit_of_(table.size()) {
  for (size_t row = 0; row < table.size(); ++row) {
    const ParameterRow& parameter = table[row];
    size_t unit = units_.size();
    for (size_t back = 1; parameter.layer >= 0 && back <= std::min<size_t>(2, units_.size()); ++back) {
      const ParameterUnit& earlier = units_[units_.size() - back];
      if (earlier.layer == parameter.layer && earlier.matrices == parameter.decays()) unit = units_.size() - back;
    }
    if (unit == units_.size()) units_.push_back({.layer = parameter.layer, .matrices = parameter.decays()});
    ParameterUnit& into = units_[unit];
    into.rows.push_back(row);
    into.offsets.push_back(into.elements);
    into.elements += rounded_up(parameter.shape.elements(), kShardAlignment);
    unit_of_[row] = unit;
  }
  for (ParameterUnit& unit : units_) {
    unit.elements = rounded_up(unit.elements, checked_product(shards, kShardAlignment, "shards"));
  }
}

int64_t ParameterUnits::offset_of(size_t row) const {
  const ParameterUnit& unit = units_[unit_of_[row]];
  const auto at = std::find(unit.rows.begin(), unit.rows.end(), row);
  return unit.offsets[static_cast<size_t>(at - unit.rows.begin())];
}

ElementRange ParameterUnits::owned(size_t row, int shard) const {
  const int64_t size = shard_elements(unit_of_[row]), offset = offset_of(row), count = table_[row].shape.elements();
  const auto inside = [&](int64_t element) { return std::clamp(element - offset, int64_t{0}, count); };
  return {inside(shard * size), inside((shard + 1) * size)};
}

int64_t ParameterUnits::place_in_shard(size_t row, int shard) const {
  return offset_of(row) + owned(row, shard).begin - shard * shard_elements(unit_of_[row]);
}

UnitBuffers::UnitBuffers(Arena& arena, const char* name, const ParameterTable& table, const ParameterUnits& units,
                         const TypeOf& type, MemoryKind kind) {
  for (size_t u = 0; u < units.size(); ++u) {
    flat_.push_back(arena.allocate(name, type(table[units[u].rows[0]]), {units[u].elements}, kind));
  }
}

UnitBuffers::UnitBuffers(Arena& arena, const char* name, const ParameterTable& table, const ParameterUnits& units,
                         const TypeOf& type, MemoryKind kind, int shard)
    : shard_(shard) {
  for (size_t u = 0; u < units.size(); ++u) {
    flat_.push_back(arena.allocate(name, type(table[units[u].rows[0]]), {units.shard_elements(u)}, kind));
  }
}

TensorView UnitBuffers::shard(const ParameterUnits& units, size_t unit, int shard) const {
  const int64_t count = units.shard_elements(unit);
  YOKE_ASSERT(whole() || shard == shard_);
  return whole() ? slice(flat_[unit], shard * count, count) : flat_[unit];
}

TensorView UnitBuffers::row(const ParameterTable& table, const ParameterUnits& units, size_t row) const {
  YOKE_ASSERT(whole());
  const Shape& shape = table[row].shape;
  return reshape(slice(flat_[units.unit_of(row)], units.offset_of(row), shape.elements()), shape);
}

TensorView UnitBuffers::piece(const ParameterTable& table, const ParameterUnits& units, size_t row, int shard) const {
  const ElementRange range = units.owned(row, shard);
  if (range.size() == 0) return {};
  const TensorView part = this->shard(units, units.unit_of(row), shard);
  const TensorView flat = slice(part, units.place_in_shard(row, shard), range.size());
  return range.size() == table[row].shape.elements() ? reshape(flat, table[row].shape) : flat;
}

}  // namespace yoke
