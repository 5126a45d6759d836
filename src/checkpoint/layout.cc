#include "checkpoint/layout.h"

#include <algorithm>

#include "base/error.h"

namespace yoke {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Elements of a row: 1 of a 1-D tensor.
int64_t width(const Shape& shape) { return shape.rank() == 1 ? 1 : shape[1]; }

void check(const TensorLayout& layout) {
  const int rank = layout.local.rank();
  YOKE_ASSERT((rank == 1 || rank == 2) && layout.global.rank() == rank, "{} of {}", layout.local.str(),
              layout.global.str());
  int64_t row = 0;
  for (const LayoutPart& part : layout.parts) {
    YOKE_ASSERT(inside(part.region, layout.global) && width(part.region.shape) == width(layout.local) &&
                    part.row >= row && part.row + part.region.shape[0] <= layout.local[0],
                "{} at row {} of {}", part.region.str(), part.row, layout.local.str());
    row = part.row + part.region.shape[0];
  }
}

/// Parts as runs of elements, adjacent ones joined. Only for parts as wide as the global tensor.
struct Run {
  int64_t local = 0, global = 0, elements = 0;
};

std::vector<Run> runs_of(const TensorLayout& layout) {
  std::vector<Run> runs;
  const int64_t cols = width(layout.local);
  for (const LayoutPart& part : layout.parts) {
    const Run run{part.row * cols, part.region.offset[0] * cols, part.region.shape.elements()};
    Run* last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->local + last->elements == run.local && last->global + last->elements == run.global) {
      last->elements += run.elements;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace

TensorLayout layout_of(const ParameterRow& row) {
  TensorLayout layout{row.whole, row.shape, {}};
  const bool vector = row.shape.rank() == 1;
  for (const ParameterPart& part : row.parts) {
    if (part.rows == 0) continue;  // of this part of the vocabulary the rank has nothing but padding
    LayoutPart* last = layout.parts.empty() ? nullptr : &layout.parts.back();
    const bool adjacent = last != nullptr && last->row + last->region.shape[0] == part.row &&
                          last->region.offset[0] + last->region.shape[0] == part.whole_row;
    LayoutPart here{part.row, {{part.whole_row, vector ? 0 : row.first_col}, {}}};
    if (adjacent) here = *last;
    const int64_t rows = part.row + part.rows - here.row;
    here.region.shape = vector ? Shape{rows} : Shape{rows, row.shape.cols()};
    if (adjacent) layout.parts.pop_back();
    layout.parts.push_back(here);
  }
  return layout;
}

std::vector<FlatPiece> flat_pieces(const TensorLayout& layout, const FlatRange& range) {
  check(layout);
  const int64_t cols = width(layout.local);
  std::vector<FlatPiece> pieces;
  for (const LayoutPart& part : layout.parts) {
    const int64_t first = part.row * cols;
    int64_t at = std::max(range.begin - first, int64_t{0});
    const int64_t end = std::min(range.end - first, part.region.shape.elements());
    while (at < end) {
      const int64_t row = at / cols, col = at % cols;
      FlatPiece piece{first + at, part.region};
      piece.region.offset[0] += row;
      if (layout.local.rank() == 1) {
        piece.region.shape = {end - at};
      } else if (col == 0 && end - at >= cols) {
        piece.region.shape = {(end - at) / cols, cols};
      } else {
        piece.region.offset[1] += col;
        piece.region.shape = {1, std::min(end - at, cols - col)};
      }
      at += piece.region.shape.elements();
      pieces.push_back(piece);
    }
  }
  return pieces;
}

FlatRange share_of_copy(const FlatRange& range, int64_t index, int64_t copies) {
  YOKE_ASSERT(index >= 0 && index < copies && range.begin <= range.end);
  const int64_t first = range.begin / kCopyGrain, grains = ceil_div(range.end, kCopyGrain) - first;
  const auto border = [&](int64_t i) {
    return std::clamp((first + ceil_div(grains * i, copies)) * kCopyGrain, range.begin, range.end);
  };
  return {border(index), border(index + 1)};
}

bool blocks_align(const TensorLayout& layout, int64_t block) {
  check(layout);
  if (width(layout.local) != width(layout.global)) return false;
  const std::vector<Run> runs = runs_of(layout);
  return std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
    const bool last = run.global + run.elements == layout.global.elements();
    const bool ends = run.elements % block == 0 || (last && &run == &runs.back());
    return run.local % block == 0 && run.global % block == 0 && ends;
  });
}

TensorLayout layout_of_blocks(const TensorLayout& layout, int64_t block) {
  YOKE_ASSERT(blocks_align(layout, block));
  TensorLayout blocks{{ceil_div(layout.global.elements(), block)}, {ceil_div(layout.local.elements(), block)}, {}};
  for (const Run& run : runs_of(layout)) {
    blocks.parts.push_back({run.local / block, {{run.global / block}, {ceil_div(run.elements, block)}}});
  }
  return blocks;
}

}  // namespace yoke
