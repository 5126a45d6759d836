// How what a rank holds of a tensor lies in the global tensor: with tensor parallelism a rank has some boxes of it, and
// of those, with sharded state, a range of elements. Checkpoints hold boxes of global tensors, whatever the layout.
#pragma once

#include <vector>

#include "checkpoint/region.h"
#include "model/parameters.h"

namespace yoke {

/// Rows [row, row + region.shape[0]) of a local tensor are this box of the global one. (Elements count as the rows of a
/// 1-D tensor.)
struct LayoutPart {
  int64_t row = 0;
  Region region;
};

/// A contiguous local tensor of one or two dimensions whose rows are boxes of a global one. Local rows that belong to
/// no part are padding: in no file, zeros when read.
struct TensorLayout {
  Shape global;
  Shape local;
  std::vector<LayoutPart> parts;  ///< in order of `row`; each as wide as `local`

  static TensorLayout whole(const Shape& shape) { return {shape, shape, {{0, Region::whole(shape)}}}; }
};

/// Where a row of a rank's table lies in the whole model's; parts that are adjacent in both are one.
TensorLayout layout_of(const ParameterRow& row);

/// Elements [begin, end) of a flattened tensor.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t elements() const { return end - begin; }
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

/// Elements [begin, begin + region.shape.elements()) of the flattened local tensor are this box of the global one.
struct FlatPiece {
  int64_t begin = 0;
  Region region;
};

/// The boxes that make up a range of the flattened local tensor, padding left out: of each part up to three, the end of
/// a row, whole rows and the beginning of a row.
std::vector<FlatPiece> flat_pieces(const TensorLayout& layout, const FlatRange& range);

/// The share of `range` that copy `index` writes where `copies` ranks hold the same elements: cut at multiples of
/// kCopyGrain elements of the tensor, so that small tensors stay whole. Perhaps nothing (begin == end).
inline constexpr int64_t kCopyGrain = 1 << 16;
FlatRange share_of_copy(const FlatRange& range, int64_t index, int64_t copies);

/// Whether blocks of `block` elements of the flattened local tensor are blocks of the flattened global one.
bool blocks_align(const TensorLayout& layout, int64_t block);

/// The layout of one value for each block, [ceil(elements / block)], where blocks_align().
TensorLayout layout_of_blocks(const TensorLayout& layout, int64_t block);

}  // namespace yoke
