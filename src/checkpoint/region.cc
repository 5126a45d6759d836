#include "checkpoint/region.h"

#include <algorithm>

namespace yoke {

Shape make_shape(const std::array<int64_t, Shape::kMaxRank>& d, int rank) {
  const Shape shapes[] = {{}, {d[0]}, {d[0], d[1]}, {d[0], d[1], d[2]}, {d[0], d[1], d[2], d[3]}};
  return shapes[rank];
}

std::string Region::str() const {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) {
    const int64_t begin = offset[static_cast<size_t>(i)];
    text += fmt::format("{}{}:{}", i > 0 ? ", " : "", begin, begin + shape[i]);
  }
  return "[" + text + "]";
}

std::optional<Region> intersection(const Region& a, const Region& b) {
  Region both = a;
  std::array<int64_t, Shape::kMaxRank> dims{};
  for (int i = 0; i < a.shape.rank(); ++i) {
    const auto d = static_cast<size_t>(i);
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[i], b.offset[d] + b.shape[i]);
    if (begin >= end) return std::nullopt;
    both.offset[d] = begin;
    dims[d] = end - begin;
  }
  both.shape = make_shape(dims, a.shape.rank());
  return both;
}

bool inside(const Region& region, const Shape& global) {
  if (region.shape.rank() != global.rank()) return false;
  for (int i = 0; i < global.rank(); ++i) {
    const int64_t offset = region.offset[static_cast<size_t>(i)];
    if (offset < 0 || region.shape[i] > global[i] || offset > global[i] - region.shape[i]) return false;
  }
  return true;
}

std::string cover_fault(const Shape& global, std::vector<Region> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Region& a, const Region& b) { return a.offset[0] < b.offset[0]; });
  int64_t held = 0;
  std::vector<const Region*> open;  // pieces that reach to where the walk along the first dimension is
  for (const Region& piece : pieces) {
    if (!inside(piece, global)) return fmt::format("{} is no part of {}", piece.str(), global.str());
    held += piece.shape.elements();
    if (global.rank() == 0) continue;
    std::erase_if(open, [&](const Region* r) { return r->offset[0] + r->shape[0] <= piece.offset[0]; });
    for (const Region* other : open) {
      if (intersection(*other, piece)) return fmt::format("{} and {} overlap", other->str(), piece.str());
    }
    open.push_back(&piece);
  }
  if (held == global.elements()) return "";
  return fmt::format("{} of its {} elements are there", held, global.elements());
}

}  // namespace yoke
