// Boxes of tensors: where a piece lies in the global tensor, and how memory of two boxes is matched.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"

namespace yoke {

/// A box of a global tensor: where it begins in each dimension, and its extent.
struct Region {
  std::array<int64_t, Shape::kMaxRank> offset{};
  Shape shape;

  static Region whole(const Shape& global) { return {{}, global}; }
  friend bool operator==(const Region& a, const Region& b) {
    return a.shape == b.shape && std::equal(a.offset.begin(), a.offset.begin() + a.shape.rank(), b.offset.begin());
  }
  std::string str() const;  ///< "[0:4, 8:16]"
};

/// The first `rank` of these dimensions.
Shape make_shape(const std::array<int64_t, Shape::kMaxRank>& dims, int rank);

/// The part that two boxes of one tensor share; nothing when they don't touch.
std::optional<Region> intersection(const Region& a, const Region& b);

/// Whether the box lies within a tensor of this shape.
bool inside(const Region& region, const Shape& global);

/// Why these boxes don't hold every element of `global` exactly once; "" when they do.
std::string cover_fault(const Shape& global, std::vector<Region> pieces);

/// Index of a global position in the contiguous memory of `box`.
inline int64_t index_in(const Region& box, const std::array<int64_t, Shape::kMaxRank>& position) {
  int64_t index = 0;
  for (int i = 0; i < box.shape.rank(); ++i) {
    index = index * box.shape[i] + position[static_cast<size_t>(i)] - box.offset[static_cast<size_t>(i)];
  }
  return index;
}

/// visit(index in `part`, index in `box`, elements) for the runs of `part` that are contiguous in the memory of `box`,
/// which holds it, in the order of their elements.
template <class Visit>
void for_each_run(const Region& part, const Region& box, const Visit& visit) {
  const int rank = part.shape.rank();
  int first = rank;  // dimensions from here on are whole in the box, so that one run spans them
  while (first > 0 && part.shape[first - 1] == box.shape[first - 1]) --first;
  const int outer = std::max(first - 1, 0);  // dimensions that are walked
  int64_t run = 1, runs = 1;
  for (int i = 0; i < rank; ++i) (i < outer ? runs : run) *= part.shape[i];
  std::array<int64_t, Shape::kMaxRank> position = part.offset;
  for (int64_t r = 0; r < runs; ++r) {
    visit(r * run, index_in(box, position), run);
    for (int i = outer - 1; i >= 0; --i) {
      const auto d = static_cast<size_t>(i);
      if (++position[d] < part.offset[d] + part.shape[i]) break;
      position[d] = part.offset[d];
    }
  }
}

}  // namespace yoke
