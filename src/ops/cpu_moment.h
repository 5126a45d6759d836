// Blocks of weights, gradients and moments for the kernels of optimizers: any format in, fp32 arithmetic, any format
// out. Like cpu_math.h, only for `*_cpu.cc` files, and everything has internal linkage.
//
// Blocks begin at multiples of kBlock, as for_blocks() cuts one long row; a block of weights is then whole blocks of
// scales, and its random numbers are a function of its place alone.
#pragma once

#include <cstring>

#include "ops/cpu_math.h"
#include "ops/moment.h"

namespace yoke::YOKE_ISA {

static_assert(kBlock % kMomentBlock == 0);

/// 32 random bits for each element of the block that begins at element `begin` of a tensor: RandomStream::block, four
/// elements a call. `use` (0 or 1) tells apart numbers for different things of one element. random.first is a multiple
/// of kBlock.
static inline void random_bits(const RandomStream& random, int64_t begin, uint32_t use, uint32_t* bits) {
  constexpr int64_t kCalls = kBlock / 4;
  const uint64_t first = (random.first + static_cast<uint64_t>(begin)) / 4;
  const auto stream0 = static_cast<uint32_t>(random.stream), stream1 = static_cast<uint32_t>(random.stream >> 32);
  const auto key0 = static_cast<uint32_t>(random.seed), key1 = static_cast<uint32_t>(random.seed >> 32);
  const auto high = static_cast<uint32_t>(first >> 32) | use << 31;
  const auto low = static_cast<uint32_t>(first);  // kCalls divides `first`: adding less never carries
#pragma omp simd
  for (int64_t i = 0; i < kCalls; ++i) {
    uint32_t c0 = low + static_cast<uint32_t>(i), c1 = high, c2 = stream0, c3 = stream1, k0 = key0, k1 = key1;
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0, p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    bits[i] = c0;
    bits[kCalls + i] = c1;
    bits[2 * kCalls + i] = c2;
    bits[3 * kCalls + i] = c3;
  }
}

/// The number of a rank's element in the whole tensor; `run`: how many from it on are neighbours there, too.
static inline int64_t place_of(const ElementPlaces& p, int64_t element, int64_t* run) {
  const int64_t row = element / p.cols, col = element % p.cols;
  int at = 0;
  while (at + 1 < p.ranges && p.range[at + 1].row <= row) ++at;
  *run = p.cols - col;
  if (p.cols == p.whole_cols) *run = at + 1 < p.ranges ? p.range[at + 1].row * p.cols - element : INT64_MAX;
  return (row - p.range[at].row + p.range[at].whole) * p.whole_cols + p.first_col + col;
}

/// The same for `n` elements of a tensor that may be a part of a larger one: bits of the places that they have there.
static inline void random_bits(const RandomStream& random, const ElementPlaces& places, int64_t begin, int64_t n,
                               uint32_t use, uint32_t* bits) {
  if (places.cols == 0) return random_bits(random, begin, use, bits);
  const RandomStream whole{random.seed, random.stream};
  uint32_t block[kBlock];
  int64_t in_block = -1;
  for (int64_t i = 0; i < n;) {
    int64_t run = 0;
    const int64_t at = place_of(places, static_cast<int64_t>(random.first) + begin + i, &run);
    const int64_t first = at / kBlock * kBlock, count = std::min(std::min(run, n - i), first + kBlock - at);
    if (first != in_block) random_bits(whole, in_block = first, use, block);
    std::memcpy(bits + i, block + (at - first), static_cast<size_t>(count) * sizeof *bits);
    i += count;
  }
}

/// Up with the probability (bits below the last place) / 2^16, by the lower 16 of `bits`.
static inline bf16 round_at_random(float x, uint32_t bits) {
  const uint32_t u = detail::float_bits(x);
  const bool finite = (u & 0x7f800000u) != 0x7f800000u;
  return {finite ? static_cast<uint16_t>((u + (bits & 0xffffu)) >> 16) : from_float<bf16>(x).bits};
}

/// Elements [begin, begin + n) of a contiguous tensor as fp32: in `buffer`, or where they are.
static inline const float* load_block(const TensorView& t, int64_t begin, int64_t n, float* buffer) {
  const float* block = nullptr;
  YOKE_FOR_TYPE(t.dtype, T, block = widen(t.as<T>() + begin, buffer, n));
  return block;
}

static inline float* load_weights(const OptimizedWeights& w, int64_t begin, int64_t n, float* buffer) {
  if (w.master.dtype == DType::f32) return w.master.as<float>() + begin;
  widen(w.master.as<bf16>() + begin, buffer, n);
  return buffer;
}

/// `random`: of this tensor and step.
static inline void store_weights(const float* block, const OptimizedWeights& w, int64_t begin, int64_t n,
                                 const RandomStream& random, const ElementPlaces& places = {}) {
  if (w.master.dtype == DType::bf16) {
    uint32_t bits[kBlock];
    random_bits(random, places, begin, n, 1, bits);
    bf16* out = w.master.as<bf16>() + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = round_at_random(block[i], bits[i]);
  }
  if (w.copy.data != nullptr) YOKE_FOR_TYPE(w.copy.dtype, T, narrow(block, w.copy.as<T>() + begin, n));
}

static inline float* load_moment(const MomentTensor& m, const DynamicMap& map, int64_t begin, int64_t n,
                                 float* buffer) {
  if (m.values.dtype == DType::f32) return m.values.as<float>() + begin;
  if (m.values.dtype == DType::bf16) {
    widen(m.values.as<bf16>() + begin, buffer, n);
    return buffer;
  }
  const uint8_t* codes = m.values.as<uint8_t>() + begin;
  const float* values = map.values.data();
  for (int64_t first = 0; first < n; first += kMomentBlock) {
    const float scale = m.scale.as<float>()[(begin + first) / kMomentBlock];
    const int64_t end = std::min(n, first + kMomentBlock);
#pragma omp simd
    for (int64_t i = first; i < end; ++i) buffer[i] = scale * values[codes[i]];
  }
  return buffer;
}

/// Codes of the nearest values to block / scale.
static inline void encode(const float* block, const DynamicMap& map, float scale, uint8_t* codes, int64_t n) {
  constexpr auto kLast = static_cast<int32_t>(DynamicMap::kCells) - 1;
  const float inverse = scale > 0x1p-120f ? 1 / scale : 0;  // a block of next to nothing counts as zero
  const float* boundaries = map.boundaries.data() + map.zero;
  const int32_t* start = map.start.data();
  const int32_t zero = map.zero;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = block[i] * inverse, magnitude = std::abs(x);
    const auto key = static_cast<int32_t>(detail::float_bits(magnitude) >> DynamicMap::kCellBits);
    const int32_t cell = std::clamp(key - static_cast<int32_t>(DynamicMap::kFirstCell), 0, kLast);
    int32_t above = start[cell];
    above += magnitude > boundaries[above] ? 1 : 0;
    const int32_t below = zero - (above < zero ? above : zero);
    codes[i] = static_cast<uint8_t>(x < 0 ? below : zero + above);
  }
}

/// `bits`: 16 random bits an element, used with bf16.
static inline void store_moment(const float* block, const MomentTensor& m, const DynamicMap& map, int64_t begin,
                                int64_t n, const uint32_t* bits, int shift) {
  if (m.values.dtype == DType::bf16) {
    bf16* out = m.values.as<bf16>() + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = round_at_random(block[i], bits[i] >> shift);
  } else if (m.values.dtype == DType::u8) {
    for (int64_t first = 0; first < n; first += kMomentBlock) {
      const int64_t count = std::min(n - first, kMomentBlock);
      float largest = 0;
#pragma omp simd reduction(max : largest)
      for (int64_t i = first; i < first + count; ++i) largest = std::max(largest, std::abs(block[i]));
      m.scale.as<float>()[(begin + first) / kMomentBlock] = largest;
      encode(block + first, map, largest, m.values.as<uint8_t>() + begin + first, count);
    }
  }
}

}  // namespace yoke::YOKE_ISA
