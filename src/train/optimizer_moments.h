// What optimizers share: moments in the recipe's format.
#pragma once

#include "train/optimizer.h"

namespace yoke {

struct MomentNames {
  const char* values;  ///< in checkpoints
  const char* scale;   ///< in checkpoints, of 8-bit codes
  const char* label;   ///< in plans
};
inline constexpr MomentNames kFirstMoment{"moments.first", "scales.first", "first moment"};
inline constexpr MomentNames kMomentum{"moments.momentum", "scales.momentum", "momentum"};
inline constexpr MomentNames kSecondMoment{"moments.second", "scales.second", "second moment"};

class MomentFormat {
 public:
  explicit MomentFormat(MomentsFormat format) : format_(format) {}
  /// Appends the one or two rows of a moment.
  void add(std::vector<StateRow>& state, const MomentNames& names, const ParameterRow& parameter,
           const Shape& held) const;

 private:
  MomentsFormat format_;
};

/// Takes the first moment that is left in `state`, which then begins behind it.
MomentTensor take_moment(std::span<const TensorView>& state);

}  // namespace yoke
