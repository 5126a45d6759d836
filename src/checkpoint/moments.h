// Moments of 8 bits (ops/moment.h) in checkpoints.
//
// Where a rank's blocks of 256 elements are blocks of the global tensor, codes and scales are saved as they are. Where
// they aren't, because columns are divided or rows don't come to whole blocks, the tensor is saved as fp32 values,
// which are turned into codes again when they are read: 4 bytes an element in the file instead of 1.016, and under
// another layout each element is rounded once more, by at most half the distance of neighbouring codes. Blocks that are
// those of the run that saved them come back with the values that they had. Every form is read under every layout.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/training_state.h"
#include "ops/moment.h"

namespace yoke {

/// A rank's share of a moment of 8 bits, in host memory.
struct QuantizedMoment {
  std::string values, scales;  ///< names in checkpoints
  bool is_signed = true;       ///< which dynamic_map()
  TensorLayout layout;         ///< of the parameter
  FlatRange held;              ///< of the flattened local tensor, from a multiple of kMomentBlock
  std::function<TensorView(const FlatRange&)> codes;    ///< u8; of a range within `held`
  std::function<TensorView(const FlatRange&)> scaling;  ///< f32, of the blocks of such a range
};

/// What is saved of elements `written` of it, a range within `held` that begins with a block. `as_values`: has to be so
/// when blocks don't align on any rank.
void add_pieces(std::vector<StatePiece>& pieces, const QuantizedMoment& moment, const FlatRange& written,
                bool as_values);

/// Fills it, whatever form the checkpoint has.
void read_moment(const Checkpoint& checkpoint, const QuantizedMoment& moment);

/// The same moment where this layout keeps fp32 values: fills `out` with elements `range`; padding is 0.
void read_moment_values(const Checkpoint& checkpoint, const QuantizedMoment& moment, const FlatRange& range,
                        float* out);

/// Codes and scale of a block of at most kMomentBlock values; those that come from codes get codes of the same values.
float quantize_block(const float* values, int64_t n, const DynamicMap& map, uint8_t* codes);

}  // namespace yoke
