// Units: parameters whose gradients and weights travel between ranks together, and the shards into which ZeRO
// (Rajbhandari et al. 2020) cuts them.
#pragma once

#include <functional>
#include <vector>

#include "model/parameters.h"
#include "ops/moment.h"

namespace yoke {

/// Rows of a parameter table back to back in one flat tensor.
struct ParameterUnit {
  int64_t layer = -1;            ///< -1: outside the blocks
  bool matrices = true;          ///< else norms and biases; a unit has one element type
  std::vector<size_t> rows;      ///< of the table
  std::vector<int64_t> offsets;  ///< of each row's first element
  int64_t elements = 0;          ///< padding included: a multiple of the number of shards
};

/// Elements [begin, end) of a flattened parameter.
struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

class ParameterUnits {
 public:
  /// Every row a unit of its own in one shard, without padding: for ranks that share nothing.
  explicit ParameterUnits(const ParameterTable& table);
  /// Matrices of a layer are a unit, its norms and biases another; rows outside the blocks are units of their own.
  /// Shard borders lie on multiples of kShardAlignment elements of a row, so that blocks of moments and random numbers
  /// are those of the whole row.
  ParameterUnits(const ParameterTable& table, int shards);

  static constexpr int64_t kShardAlignment = 512;
  static_assert(kShardAlignment % kMomentBlock == 0);

  int shards() const { return shards_; }
  size_t size() const { return units_.size(); }
  const ParameterUnit& operator[](size_t unit) const { return units_[unit]; }
  size_t unit_of(size_t row) const { return unit_of_[row]; }
  /// Where a row begins in its unit.
  int64_t offset_of(size_t row) const;
  /// Elements of a unit that one shard has.
  int64_t shard_elements(size_t unit) const { return units_[unit].elements / shards_; }
  /// What of a row's elements shard `shard` has; perhaps nothing.
  ElementRange owned(size_t row, int shard) const;
  /// Where they are in the shard's part of the unit.
  int64_t place_in_shard(size_t row, int shard) const;

 private:
  const ParameterTable& table_;
  int shards_ = 1;
  std::vector<ParameterUnit> units_;
  std::vector<size_t> unit_of_;
};

/// Memory for the rows of a table by units: all of every unit, or one shard of it.
class UnitBuffers {
 public:
  using TypeOf = std::function<DType(const ParameterRow&)>;

  UnitBuffers() = default;
  UnitBuffers(Arena& arena, const char* name, const ParameterTable& table, const ParameterUnits& units,
              const TypeOf& type, MemoryKind kind);
  /// One shard.
  UnitBuffers(Arena& arena, const char* name, const ParameterTable& table, const ParameterUnits& units,
              const TypeOf& type, MemoryKind kind, int shard);

  bool whole() const { return shard_ < 0; }
  /// All the memory of a unit, flat.
  const TensorView& unit(size_t unit) const { return flat_[unit]; }
  /// The part of a unit that belongs to a shard, flat.
  TensorView shard(const ParameterUnits& units, size_t unit, int shard) const;
  /// A row in its shape; whole buffers only.
  TensorView row(const ParameterTable& table, const ParameterUnits& units, size_t row) const;
  /// What a shard has of a row: flat, absent where that is nothing; in the row's shape where that is all of it.
  TensorView piece(const ParameterTable& table, const ParameterUnits& units, size_t row, int shard) const;

 private:
  std::vector<TensorView> flat_;
  int shard_ = -1;
};

/// Elements [begin, begin + count) of a flat tensor.
TensorView slice(const TensorView& flat, int64_t begin, int64_t count);

}  // namespace yoke
