// Tiles of packed operands and their products. Included only by this folder's `*_cpu.cc` files.
//
// A product C[rows, columns] (+)= A B sums over `steps` words. A word holds one fp32 element, or a pair of bf16
// elements that are neighbours in the summed dimension. A is read word by word and broadcast; B is [steps, columns]
// words.
#pragma once

#include <cstring>
#include <type_traits>

#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_vector.h"

namespace yoke::YOKE_ISA {
namespace {

constexpr int kRows = kAttentionRows, kKeys = kAttentionKeys;
constexpr int kRowVectors = kRows / kLanes;
static_assert(kTileRows % 2 == 0, "pairs of keys stay within a group of tile rows");

YOKE_LANES Lanes load_columns(const float* p) { return load(p); }
YOKE_LANES Lanes broadcast_add(const float* a, Lanes b, Lanes c) { return multiply_add(splat(*a), b, c); }

/// Puts the lanes of tile row j, and of rows j and j + 1.
YOKE_LANES void put_row(float* tile, int64_t j, int64_t lane, Lanes x) { store(tile + j * kRows + lane, x); }
YOKE_LANES void put_rows_paired(float* tile, int64_t j, int64_t lane, Lanes x0, Lanes x1) {
  store(tile + j * kRows + lane, x0);
  store(tile + (j + 1) * kRows + lane, x1);
}

#if defined(__AVX512BF16__)
struct PairColumns {
  __m512i v;
};
YOKE_LANES PairColumns load_columns(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
YOKE_LANES Lanes broadcast_add(const uint32_t* a, PairColumns b, Lanes c) {
  const __m512i word = _mm512_set1_epi32(static_cast<int>(*a));
  return {_mm512_dpbf16_ps(c.v, reinterpret_cast<__m512bh>(word), reinterpret_cast<__m512bh>(b.v))};
}
YOKE_LANES void put_row(uint32_t* tile, int64_t j, int64_t lane, Lanes x) {
  const __m256bh rounded = _mm512_cvtneps_pbh(x.v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile + (j * kRows + lane) / 2), reinterpret_cast<__m256i>(rounded));
}
YOKE_LANES void put_rows_paired(uint32_t* tile, int64_t j, int64_t lane, Lanes x0, Lanes x1) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512bh rounded = _mm512_cvtne2ps_pbh(x1.v, x0.v);
  _mm512_storeu_si512(tile + j / 2 * kRows + lane,
                      _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), reinterpret_cast<__m512i>(rounded)));
}
#endif

/// to[word][i] = square[i][word] for the first `width` words.
template <class Word>
void put_transposed(const Word (&square)[kLanes][kLanes], int64_t width, Word* to, int64_t to_row) {
#if defined(__AVX512F__)
  __m512i x[kLanes], t[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = _mm512_load_si512(square[i]);
  // Transposes the 4 x 4 blocks of four rows at once, ...
  for (int i = 0; i < kLanes; i += 4) {
    const __m512i low0 = _mm512_unpacklo_epi32(x[i], x[i + 1]), high0 = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    const __m512i low1 = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]), high1 = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
    t[i] = _mm512_unpacklo_epi64(low0, low1);
    t[i + 1] = _mm512_unpackhi_epi64(low0, low1);
    t[i + 2] = _mm512_unpacklo_epi64(high0, high1);
    t[i + 3] = _mm512_unpackhi_epi64(high0, high1);
  }
  // ... then the 4 x 4 matrix of those blocks: block b of t[i + 4 r] becomes block r of word 4 b + i.
  for (int i = 0; i < 4; ++i) {
    const __m512i even0 = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88), odd0 = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    const __m512i even1 = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    const __m512i odd1 = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    x[i] = _mm512_shuffle_i32x4(even0, even1, 0x88);
    x[i + 4] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
    x[i + 12] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
  }
  if (width == kLanes) {
    for (int w = 0; w < kLanes; ++w) _mm512_storeu_si512(to + w * to_row, x[w]);
  } else {
    for (int64_t w = 0; w < width; ++w) _mm512_storeu_si512(to + w * to_row, x[w]);
  }
#else
  for (int64_t w = 0; w < width; ++w) {
    for (int i = 0; i < kLanes; ++i) to[w * to_row + i] = square[i][w];
  }
#endif
}

enum class Start { zero, add, scale };  // C = 0, C, C * (row's factor) before the product is added

template <class Word>
struct Product {
  const Word* a;
  int64_t a_row, a_step;  // words between rows and between steps of A
  const Word* b;
  int64_t b_step;
  int64_t steps;
  float* c;
  int64_t c_row;
  const float* factors;  // one a row; used by Start::scale
};

template <Start kStart, int kM, int kN, class Word>
__attribute__((noinline)) void product_tile(const Product<Word>& p) {
  Lanes sum[kM][kN];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) {
      if constexpr (kStart == Start::zero) sum[m][n] = splat(0);
      if constexpr (kStart != Start::zero) sum[m][n] = load(p.c + m * p.c_row + n * kLanes);
      if constexpr (kStart == Start::scale) sum[m][n] = sum[m][n] * splat(p.factors[m]);
    }
  }
  const Word* a = p.a;
  const Word* b = p.b;
  for (int64_t step = 0; step < p.steps; ++step) {
    decltype(load_columns(b)) columns[kN];
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) columns[n] = load_columns(b + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) sum[m][n] = broadcast_add(a + m * p.a_row, columns[n], sum[m][n]);
    }
    a += p.a_step;
    b += p.b_step;
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) store(p.c + m * p.c_row + n * kLanes, sum[m][n]);
  }
}

template <Start kStart, int kM, class Word>
void product_vectors(Product<Word> p, int64_t vectors) {
  for (; vectors >= kTileVectors; vectors -= kTileVectors) {
    product_tile<kStart, kM, kTileVectors>(p);
    p.b += kTileVectors * kLanes;
    p.c += kTileVectors * kLanes;
  }
  if constexpr (kTileVectors > 1) {
    if (vectors == 3) product_tile<kStart, kM, 3>(p);
    if (vectors == 2) product_tile<kStart, kM, 2>(p);
    if (vectors == 1) product_tile<kStart, kM, 1>(p);
  }
}

/// One group of at most kTileRows rows times `vectors` x 16 columns.
template <Start kStart, class Word>
void product(int64_t rows, int64_t vectors, const Product<Word>& p) {
  if (rows >= kTileRows) return product_vectors<kStart, kTileRows>(p, vectors);
  if constexpr (kTileRows > 2) {
    if (rows == 5) return product_vectors<kStart, 5>(p, vectors);
    if (rows == 4) return product_vectors<kStart, 4>(p, vectors);
    if (rows == 3) return product_vectors<kStart, 3>(p, vectors);
    if (rows == 2) return product_vectors<kStart, 2>(p, vectors);
  }
  if (rows == 1) product_vectors<kStart, 1>(p, vectors);
}

/// The rows of one head of one batch row; a query row is a query and one of the `group` heads of a key/value head.
template <class T>
struct HeadRows {
  T* base;
  int64_t stride;
  int64_t group;
  int64_t dim;

  T* operator()(int64_t row) const {
    return group == 1 ? base + row * stride : base + row / group * stride + row % group * dim;
  }
};

template <class T>
HeadRows<T> head_rows(const TensorView& t, int64_t batch_rows, int64_t batch, int64_t kv_head, int64_t group,
                      int64_t dim) {
  return {t.as<T>() + batch * batch_rows * t.row_stride + kv_head * group * dim, t.row_stride, group, dim};
}

template <class Word>
constexpr int64_t kDepth = std::is_same_v<Word, float> ? 1 : 2;

/// The words of `count` neighbouring elements.
template <class T>
void put_words(const T* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}
YOKE_LANES void put_words(const bf16* from, int64_t count, uint32_t* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(bf16));
}

template <class Word>
void put_zeros(int64_t count, Word* to) {
  std::memset(to, 0, static_cast<size_t>(count) * sizeof(Word));
}

/// A operand summed over the head dimension: dst[i][word], `count` rows from `first` on, then zero rows up to `padded`.
template <class T, class Word>
void pack_rows(const HeadRows<const T>& rows, int64_t first, int64_t count, int64_t padded, Word* dst) {
  const int64_t words = rows.dim / kDepth<Word>;
  for (int64_t i = 0; i < count; ++i) put_words(rows(first + i), rows.dim, dst + i * words);
  put_zeros((padded - count) * words, dst + count * words);
}

/// B operand summed over the head dimension: dst[word][i] with kRows columns, those beyond `count` zero.
template <class T, class Word>
void pack_transposed(const HeadRows<const T>& rows, int64_t first, int64_t count, Word* dst) {
  const int64_t words = rows.dim / kDepth<Word>;
  alignas(64) Word square[kLanes][kLanes];
  for (int64_t lane = 0; lane < count; lane += kLanes) {
    const int64_t lanes = std::min<int64_t>(kLanes, count - lane);
    put_zeros((kLanes - lanes) * kLanes, square[0] + lanes * kLanes);
    for (int64_t word = 0; word < words; word += kLanes) {
      const int64_t width = std::min<int64_t>(kLanes, words - word);
      for (int64_t i = 0; i < lanes; ++i) {
        put_words(rows(first + lane + i) + word * kDepth<Word>, width * kDepth<Word>, square[i]);
      }
      put_transposed(square, width, dst + word * kRows + lane, kRows);
    }
  }
}

/// B operand summed over rows: dst[row word][column] with `cols` columns; the row that makes an odd `count` even and
/// columns beyond the head dimension are zero: what is hidden there has the factor 0, which NaN would survive.
template <class T, class Word>
void pack_summed(const HeadRows<const T>& rows, int64_t first, int64_t count, int64_t cols, Word* dst) {
  for (int64_t i = 0; i < count; i += kDepth<Word>, dst += cols) {
    if constexpr (kDepth<Word> == 1) {
      put_words(rows(first + i), rows.dim, dst);
    } else if (i + 1 < count) {
      const T *even = rows(first + i), *odd = rows(first + i + 1);
#pragma omp simd
      for (int64_t c = 0; c < rows.dim; ++c) dst[c] = even[c].bits | static_cast<uint32_t>(odd[c].bits) << 16;
    } else {
      const T* even = rows(first + i);
      for (int64_t c = 0; c < rows.dim; ++c) dst[c] = even[c].bits;
    }
    put_zeros(cols - rows.dim, dst + rows.dim);
  }
  if (kDepth<Word> == 1 && count % 2 != 0) put_zeros(cols, dst);
}

/// Which keys a block of rows sees: lanes carry the limits of each row, vectors those of sixteen. A row that sees none
/// ends before it begins.
struct Sight {
  const int32_t* begin;  // [kRows] first visible key, by its index
  const int32_t* end;    // [kRows] last visible key
  int64_t vectors;

  int64_t first() const { return begin[0]; }
  int64_t last() const { return end[vectors * kLanes - 1]; }
};

/// Indices of the last and the first key that a query sees; neither decreases from a query to the next.
YOKE_LANES int64_t last_key(const AttentionShape& shape, int64_t query) {
  return std::clamp<int64_t>(shape.query_offset + query - shape.key_offset, -1, shape.keys - 1);
}
YOKE_LANES int64_t first_key(const AttentionShape& shape, const int32_t* key_begin, int64_t query) {
  const int64_t from = shape.window > 0 ? shape.query_offset + query - shape.window + 1 : 0;
  return std::clamp<int64_t>(std::max<int64_t>(from, key_begin[query]) - shape.key_offset, 0, shape.keys);
}

/// The limits of `count` rows from `first` on, put into begin and end; lanes beyond them repeat the last row's.
YOKE_LANES Sight sight_of(const AttentionShape& shape, const int32_t* key_begin, int64_t group, int64_t first,
                          int64_t count, int32_t* begin, int32_t* end) {
  const int64_t vectors = (count + kLanes - 1) / kLanes;
  for (int64_t i = 0; i < vectors * kLanes; ++i) {
    const int64_t query = (first + std::min(i, count - 1)) / group;
    begin[i] = static_cast<int32_t>(first_key(shape, key_begin, query));
    end[i] = static_cast<int32_t>(last_key(shape, query));
  }
  return {begin, end, vectors};
}

/// The part of a tile of `keys` keys from `first` on that a block of rows sees.
struct TilePart {
  bool masked;                // some pair in the part's ranges is not visible
  int64_t from[kRowVectors];  // [from, to): keys of the tile that a vector's rows see, widened to pairs
  int64_t to[kRowVectors];
  int64_t vectors;

  TilePart(const Sight& sight, int64_t first, int64_t keys) : vectors(sight.vectors) {
    const int64_t lanes = vectors * kLanes;
    masked = keys % 2 != 0 || sight.begin[lanes - 1] > first || sight.end[0] < first + keys - 1;
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t begin = sight.begin[v * kLanes] - first, end = sight.end[(v + 1) * kLanes - 1] + 1 - first;
      from[v] = std::clamp<int64_t>(begin, 0, keys) & ~int64_t{1};
      to[v] = std::max(from[v], (std::clamp<int64_t>(end, 0, keys) + 1) & ~int64_t{1});
    }
  }
  /// The vectors [v0, v1) that see any of the keys [j0, j1) of the tile.
  void vectors_of(int64_t j0, int64_t j1, int64_t& v0, int64_t& v1) const {
    v0 = 0;
    v1 = vectors;
    while (v0 < v1 && to[v0] <= j0) ++v0;
    while (v1 > v0 && from[v1 - 1] >= j1) --v1;
  }
};

/// tile[key][row] = A[key] . B[row] wherever the part has a pair.
template <class Word>
void product_of_rows(const TilePart& part, int64_t keys, int64_t dim, const Word* a, const Word* b, float* tile) {
  const int64_t words = dim / kDepth<Word>, padded = keys + keys % 2;
  for (int64_t j = 0; j < padded; j += kTileRows) {
    int64_t v0, v1;
    part.vectors_of(j, j + kTileRows, v0, v1);
    if (v0 == v1) continue;
    product<Start::zero>(std::min<int64_t>(kTileRows, padded - j), v1 - v0,
                         Product<Word>{.a = a + j * words,
                                       .a_row = words,
                                       .a_step = 1,
                                       .b = b + v0 * kLanes,
                                       .b_step = kRows,
                                       .steps = words,
                                       .c = tile + j * kRows + v0 * kLanes,
                                       .c_row = kRows,
                                       .factors = nullptr});
  }
}

/// out[row][column] (+)= sum over keys of tile[key][row] * B[key][column]; `tile` is paired along keys.
template <Start kStart, class Word>
void product_over_keys(const TilePart& part, int64_t rows, int64_t cols, const Word* tile, const Word* b, float* out,
                       const float* factors) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t count = std::min<int64_t>(kTileRows, rows - i);
    const int64_t from = part.from[i / kLanes] / kDepth<Word>, to = part.to[(i + count - 1) / kLanes] / kDepth<Word>;
    product<kStart>(count, cols / kLanes,
                    Product<Word>{.a = tile + from * kRows + i,
                                  .a_row = 1,
                                  .a_step = kRows,
                                  .b = b + from * cols,
                                  .b_step = cols,
                                  .steps = std::max<int64_t>(0, to - from),
                                  .c = out + i * cols,
                                  .c_row = cols,
                                  .factors = factors + i});
  }
}

/// out[key][column] += sum over rows of tile[key][row] * B[row][column]; `tile` is paired along rows.
template <class Word>
void product_over_rows(const TilePart& part, int64_t keys, int64_t cols, const Word* tile, const Word* b, float* out) {
  for (int64_t j = 0; j < keys; j += kTileRows) {
    int64_t v0, v1;
    part.vectors_of(j, j + kTileRows, v0, v1);
    if (v0 == v1) continue;
    const int64_t from = v0 * kLanes / kDepth<Word>, to = v1 * kLanes / kDepth<Word>;
    product<Start::add>(std::min<int64_t>(kTileRows, keys - j), cols / kLanes,
                        Product<Word>{.a = tile + (j * kRows) / kDepth<Word> + from,
                                      .a_row = kRows / kDepth<Word>,
                                      .a_step = 1,
                                      .b = b + from * cols,
                                      .b_step = cols,
                                      .steps = to - from,
                                      .c = out + j * cols,
                                      .c_row = cols,
                                      .factors = nullptr});
  }
}

template <class T>
void put_elements(const float* from, float factor, int64_t count, T* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = from_float<T>(from[i] * factor);
}

template <class T>
void add_elements(const float* from, float factor, int64_t count, T* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = from_float<T>(to_float(to[i]) + from[i] * factor);
}

/// use(T{}) or, where the tensor is wider, use(float{}).
template <class T, class Use>
void for_wide_type(DType dtype, const Use& use) {
  if constexpr (!std::is_same_v<T, float>) {
    if (dtype != DType::f32) return use(T{});
  }
  use(float{});
}

}  // namespace
}  // namespace yoke::YOKE_ISA
