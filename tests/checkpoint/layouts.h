// Layouts of tensors as parallel training has them, invented at random: fused parts split by rows, columns split,
// replicas, flat shards, copies.
#pragma once

#include <random>
#include <vector>

#include "checkpoint/layout.h"

namespace yoke::test {

struct InventedRank {
  TensorLayout layout;
  FlatRange held;     ///< what it holds of the flattened local tensor
  FlatRange written;  ///< what it writes: nobody else does
};

struct InventedSplit {
  std::vector<InventedRank> ranks;
};

/// A tensor of fused parts.
struct InventedTensor {
  template <class Random>
  explicit InventedTensor(Random& random) {
    const bool vector = random() % 4 == 0;
    int64_t rows = 0;
    const int count = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < count; ++i) {
      parts.push_back(4 + static_cast<int64_t>(random() % 40));
      rows += parts.back();
    }
    if (vector) {
      global = {rows};
    } else {
      global = {rows, 4 + static_cast<int64_t>(random() % 60)};
    }
  }

  /// Cuts it for `tensor` ranks by rows of each part, by columns, or not at all; each local tensor in `shards` flat
  /// ranges whose borders are multiples of `grain`, each of which `copies` ranks hold.
  InventedSplit split(int64_t tensor, int axis, int64_t shards, int64_t copies, int64_t grain) const {
    InventedSplit split;
    for (int64_t t = 0; t < tensor; ++t) {
      const TensorLayout layout = local(tensor, axis, t);
      const int64_t elements = layout.local.elements(), grains = (elements + grain - 1) / grain;
      const auto border = [&](int64_t s) { return std::min((grains * s + shards - 1) / shards * grain, elements); };
      const int64_t replicas = axis == 2 ? tensor : 1;  // all tensor ranks hold it
      for (int64_t s = 0; s < shards; ++s) {
        for (int64_t c = 0; c < copies; ++c) {
          const FlatRange held{border(s), border(s + 1)};
          const int64_t copy = axis == 2 ? c * tensor + t : c;
          split.ranks.push_back({layout, held, share_of_copy(held, copy, copies * replicas)});
        }
      }
    }
    return split;
  }

  template <class Random>
  InventedSplit split(Random& random, int64_t grain = 1) const {
    const int axis = global.rank() == 1 ? 2 * static_cast<int>(random() % 2) : static_cast<int>(random() % 3);
    const auto pick = [&](uint64_t most) { return 1 + static_cast<int64_t>(random() % most); };
    return split(pick(4), axis, pick(5), pick(3), grain);
  }

  /// axis 0: rows of each part, 1: columns, 2: whole. The last rank of axis 0 gets padding where a part doesn't divide.
  TensorLayout local(int64_t ranks, int axis, int64_t rank) const {
    if (axis == 2) return TensorLayout::whole(global);
    if (axis == 1) {
      const int64_t begin = global[1] * rank / ranks, end = global[1] * (rank + 1) / ranks;
      const Shape shape{global[0], end - begin};
      return {global, shape, {{0, {{0, begin}, shape}}}};
    }
    TensorLayout layout{global, {}, {}};
    int64_t row = 0, first = 0;
    for (const int64_t rows : parts) {
      const int64_t share = (rows + ranks - 1) / ranks;
      const int64_t begin = std::min(share * rank, rows), end = std::min(begin + share, rows);
      Region region{{first + begin, 0}, global};
      region.shape = global.rank() == 1 ? Shape{end - begin} : Shape{end - begin, global[1]};
      if (end > begin) layout.parts.push_back({row, region});
      row += share;
      first += rows;
    }
    layout.local = global.rank() == 1 ? Shape{row} : Shape{row, global[1]};
    return layout;
  }

  Shape global;
  std::vector<int64_t> parts;
};

}  // namespace yoke::test
