// What an optimizer remembers of a weight tensor between steps, in three formats, and the random numbers by which
// 16-bit values are rounded.
//
//   fp32   as it is
//   bf16   rounded at random: up with the probability of the distance below, so that the mean is exact and updates
//          that are smaller than half a unit in the last place are not lost
//   8 bits a code for each element and the largest magnitude of each block of 256, its scale. The code names one of the
//          256 values of a dynamic map (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization"): the
//          nearest to element / scale. In the unsigned map a positive element never gets the code of zero, because a
//          second moment of zero would let an update explode; but a block whose scale is 2^-120 or less is stored as
//          zeros, because reciprocals of the smallest scales overflow.
#pragma once

#include <array>

#include "base/random.h"
#include "device/context.h"

namespace yoke {

inline constexpr int64_t kMomentBlock = 256;  ///< elements that share a scale

struct MomentTensor {
  TensorView values;  ///< [n] f32 | bf16 | u8
  TensorView scale;   ///< [ceil(n / kMomentBlock)] f32 with u8, else absent
};

/// 256 values in rising order from (-1 or 0) to 1, densest around 0: seven decades, the one that ends at 10^-k cut into
/// 2^(6-k) equal intervals (2^(7-k) unsigned) whose midpoints are the values (negative too when signed), and 0 and 1.
struct DynamicMap {
  std::array<float, 256> values;
  std::array<float, 256> boundaries;  ///< between neighbours: halfway; infinity behind the last
  int32_t zero = 0;                   ///< the code of 0; values and boundaries below it mirror those above
  /// The code of a magnitude is zero + n + (magnitude > boundaries[zero + n]) with n = start[cell(magnitude)]: a cell
  /// is so small that it holds one boundary at most.
  static constexpr uint32_t kCellBits = 15, kFirstCell = 0x6700, kCells = 0x1801;  ///< fp32 bits >> 15, from 2^-24 to 1
  std::array<int32_t, kCells> start;
};
const DynamicMap& dynamic_map(bool is_signed);

/// A moment of so many elements that `op` takes under `name`: an assertion otherwise.
void check_moment(const char* op, const char* name, const MomentTensor& moment, int64_t elements);
double bytes_of(const MomentTensor& moment);

/// Where the elements of a rank's tensor stand in the whole model's, from which the rank has ranges of rows and of
/// columns. What is rounded at random takes the numbers of the whole tensor's elements, whoever holds them.
struct ElementPlaces {
  static constexpr int kMostRanges = 3;
  struct Range {
    int64_t row = 0;    ///< of the rank's tensor: where the range begins; it goes on to the next one
    int64_t whole = 0;  ///< the same row of the whole tensor
  };
  int64_t cols = 0;  ///< of the rank's tensor; 0: it is the whole one
  int64_t whole_cols = 0, first_col = 0;
  int ranges = 0;
  Range range[kMostRanges];
};

/// What an optimizer changes: the master weights and, where blocks compute in 16 bits, the rounded copy.
struct OptimizedWeights {
  TensorView master;  ///< [n] f32; or bf16, the only copy there is, rounded at random
  TensorView copy;    ///< [n] bf16 | f16: master, rounded to nearest; absent when blocks compute with master itself
};
void check_weights(const char* op, const OptimizedWeights& weights, int64_t elements);
double bytes_of(const OptimizedWeights& weights);

/// A tensor as one long row; absent stays absent.
inline TensorView flat(const TensorView& t) { return t.absent() ? t : reshape(t, {t.elements()}); }
inline OptimizedWeights flat(const OptimizedWeights& w) { return {flat(w.master), flat(w.copy)}; }

/// A gradient is f32 or bf16.
void check_gradient(const char* op, const TensorView& gradient, int64_t elements);

}  // namespace yoke
