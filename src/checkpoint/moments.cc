#include "checkpoint/moments.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"

namespace yoke {

namespace {

constexpr int64_t kPieceElements = 1 << 18;  // values that are in memory at a time
static_assert(kPieceElements % kMomentBlock == 0);

int64_t blocks_of(int64_t elements) { return (elements + kMomentBlock - 1) / kMomentBlock; }

/// As the kernels do it (ops/cpu_moment.h).
uint8_t nearest_code(float x, const DynamicMap& map) {
  const auto first = map.boundaries.begin() + map.zero;
  const auto above = static_cast<int32_t>(std::lower_bound(first, map.boundaries.end(), std::abs(x)) - first);
  return static_cast<uint8_t>(x < 0 ? map.zero - std::min(above, map.zero) : map.zero + above);
}

/// False where the codes stand for other values.
bool encode(const float* values, int64_t n, const DynamicMap& map, float scale, uint8_t* codes) {
  const float inverse = scale > 0x1p-120f ? 1 / scale : 0;
  bool exact = true;
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = nearest_code(values[i] * inverse, map);
    exact = exact && scale * map.values[codes[i]] == values[i];
  }
  return exact;
}

/// Elements [range.begin, range.end) of the local tensor, from codes of the global one.
void decode_region(const Checkpoint& checkpoint, const QuantizedMoment& moment, const Region& region, float* out) {
  const Shape& global = moment.layout.global;
  const int64_t elements = region.shape.elements();
  std::vector<uint8_t> codes(static_cast<size_t>(elements));
  checkpoint.read(moment.values, global, region, TensorView(codes.data(), DType::u8, region.shape));
  const Region whole = Region::whole(global);
  std::array<int64_t, Shape::kMaxRank> last = region.offset;
  for (int i = 0; i < global.rank(); ++i) last[static_cast<size_t>(i)] += region.shape[i] - 1;
  const int64_t first_block = index_in(whole, region.offset) / kMomentBlock;
  const Region blocks{{first_block}, {index_in(whole, last) / kMomentBlock + 1 - first_block}};
  std::vector<float> scales(static_cast<size_t>(blocks.shape[0]));
  checkpoint.read(moment.scales, {blocks_of(global.elements())}, blocks,
                  TensorView(scales.data(), DType::f32, blocks.shape));
  const DynamicMap& map = dynamic_map(moment.is_signed);
  for_each_run(region, whole, [&](int64_t to, int64_t from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const float scale = scales[static_cast<size_t>((from + i) / kMomentBlock - first_block)];
      out[to + i] = scale * map.values[codes[static_cast<size_t>(to + i)]];
    }
  });
}

}  // namespace

float quantize_block(const float* values, int64_t n, const DynamicMap& map, uint8_t* codes) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(values[i]));
  if (encode(values, n, map, largest, codes) || largest == 0) return largest;
  // The largest magnitude of a block may have been a negative element, whose code stands for less than the scale.
  float scale = largest / std::abs(map.values[0]);
  for (int i = 0; i < 2; ++i) scale = std::nextafter(scale, 0.0f);
  for (int i = 0; i < 5 && map.values[0] < 0; ++i, scale = std::nextafter(scale, INFINITY)) {
    if (encode(values, n, map, scale, codes)) return scale;
  }
  encode(values, n, map, largest, codes);
  return largest;
}

void add_pieces(std::vector<StatePiece>& pieces, const QuantizedMoment& moment, const FlatRange& written,
                bool as_values) {
  if (written.elements() == 0) return;
  YOKE_ASSERT(written.begin % kMomentBlock == 0);
  const TensorLayout& layout = moment.layout;
  if (!as_values) {
    for (const FlatPiece& piece : flat_pieces(layout, written)) {
      pieces.push_back({moment.values, DType::u8, layout.global, piece.region, [moment, piece] {
                          const int64_t elements = piece.region.shape.elements();
                          return reshape(moment.codes({piece.begin, piece.begin + elements}), piece.region.shape);
                        }});
    }
    const TensorLayout blocks = layout_of_blocks(layout, kMomentBlock);
    for (const FlatPiece& piece : flat_pieces(blocks, {written.begin / kMomentBlock, blocks_of(written.end)})) {
      pieces.push_back({moment.scales, DType::f32, blocks.global, piece.region, [moment, piece] {
                          const int64_t begin = piece.begin * kMomentBlock,
                                        end = begin + piece.region.shape.elements() * kMomentBlock;
                          return moment.scaling({begin, std::min(end, moment.held.end)});
                        }});
    }
    return;
  }
  const auto buffer = std::make_shared<std::vector<float>>();
  for (int64_t begin = written.begin; begin < written.end; begin += kPieceElements) {
    for (const FlatPiece& piece : flat_pieces(layout, {begin, std::min(begin + kPieceElements, written.end)})) {
      pieces.push_back({moment.values, DType::f32, layout.global, piece.region, [moment, piece, buffer] {
                          const int64_t elements = piece.region.shape.elements();
                          const FlatRange range{piece.begin, piece.begin + elements};
                          const TensorView codes = moment.codes(range), scales = moment.scaling(range);
                          const DynamicMap& map = dynamic_map(moment.is_signed);
                          const int64_t first = piece.begin / kMomentBlock;
                          buffer->resize(static_cast<size_t>(elements));
                          for (int64_t i = 0; i < elements; ++i) {
                            const float scale = scales.as<float>()[(piece.begin + i) / kMomentBlock - first];
                            (*buffer)[static_cast<size_t>(i)] = scale * map.values[codes.as<uint8_t>()[i]];
                          }
                          return TensorView(buffer->data(), DType::f32, piece.region.shape);
                        }});
    }
  }
}

void read_moment_values(const Checkpoint& checkpoint, const QuantizedMoment& moment, const FlatRange& range,
                        float* out) {
  std::fill_n(out, range.elements(), 0.0f);
  const bool coded = checkpoint.has(moment.values) && checkpoint.dtype(moment.values) == DType::u8;
  for (const FlatPiece& piece : flat_pieces(moment.layout, range)) {
    float* to = out + (piece.begin - range.begin);
    if (coded) {
      decode_region(checkpoint, moment, piece.region, to);
    } else {
      checkpoint.read(moment.values, moment.layout.global, piece.region,
                      TensorView(to, DType::f32, piece.region.shape));
    }
  }
}

void read_moment(const Checkpoint& checkpoint, const QuantizedMoment& moment) {
  const DynamicMap& map = dynamic_map(moment.is_signed);
  const FlatRange& held = moment.held;
  if (held.elements() == 0) return;
  YOKE_ASSERT(held.begin % kMomentBlock == 0);
  const bool coded = checkpoint.has(moment.values) && checkpoint.dtype(moment.values) == DType::u8;
  if (coded && blocks_align(moment.layout, kMomentBlock)) {
    const TensorView codes = moment.codes(held), scales = moment.scaling(held);
    std::fill_n(codes.as<uint8_t>(), codes.elements(), static_cast<uint8_t>(map.zero));
    std::fill_n(scales.as<float>(), scales.elements(), 0.0f);
    for (const FlatPiece& piece : flat_pieces(moment.layout, held)) {
      checkpoint.read(moment.values, moment.layout.global, piece.region,
                      TensorView(codes.as<uint8_t>() + piece.begin - held.begin, DType::u8, piece.region.shape));
    }
    const TensorLayout blocks = layout_of_blocks(moment.layout, kMomentBlock);
    const int64_t first = held.begin / kMomentBlock;
    for (const FlatPiece& piece : flat_pieces(blocks, {first, blocks_of(held.end)})) {
      checkpoint.read(moment.scales, blocks.global, piece.region,
                      TensorView(scales.as<float>() + piece.begin - first, DType::f32, piece.region.shape));
    }
    return;
  }
  std::vector<float> values(static_cast<size_t>(std::min(kPieceElements, held.elements())));
  for (int64_t begin = held.begin; begin < held.end; begin += kPieceElements) {
    const FlatRange range{begin, std::min(begin + kPieceElements, held.end)};
    read_moment_values(checkpoint, moment, range, values.data());
    const TensorView codes = moment.codes(range), scales = moment.scaling(range);
    for (int64_t i = 0; i < range.elements(); i += kMomentBlock) {
      scales.as<float>()[i / kMomentBlock] =
          quantize_block(values.data() + i, std::min(kMomentBlock, range.elements() - i), map, codes.as<uint8_t>() + i);
    }
  }
}

}  // namespace yoke
