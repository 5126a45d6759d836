// Stores: where block code gets its weights and leaves its gradients. How either is sharded, gathered or reduced hides
// behind these calls.
#pragma once

#include <vector>

#include "device/context.h"
#include "model/parameters.h"

namespace yoke {

/// One tensor for each row of a parameter table, all of one type.
class ParameterBuffers {
 public:
  ParameterBuffers() = default;
  ParameterBuffers(Arena& arena, const char* name, const ParameterTable& table, DType dtype, MemoryKind kind);
  const TensorView& operator[](size_t row) const { return views_[row]; }
  size_t size() const { return views_.size(); }
  DType dtype() const { return dtype_; }

 private:
  DType dtype_ = DType::f32;
  std::vector<TensorView> views_;
};

/// Weights in the type that blocks compute in.
class WeightStore {
 public:
  explicit WeightStore(const ParameterBuffers& weights) : weights_(weights) {}
  /// Starts to make a layer's weights present; with all of them resident there is nothing to do.
  void gather(int64_t layer) { (void)layer; }
  const TensorView& get(size_t row) const { return weights_[row]; }
  void release(int64_t layer) { (void)layer; }

 private:
  const ParameterBuffers& weights_;
};

/// Gradients, summed over the micro-batches of a step.
class GradientStore {
 public:
  struct Slot {
    TensorView gradient;      ///< f32, shape of the parameter
    bool accumulate = false;  ///< something of this step is already in it
  };

  explicit GradientStore(const ParameterBuffers& gradients)
      : gradients_(gradients), written_(gradients.size(), false) {}
  /// What follows belongs to a new step.
  void begin_step() { written_.assign(written_.size(), false); }
  /// Where to write the next contribution.
  Slot get(size_t row) {
    const bool accumulate = written_[row];
    written_[row] = true;
    return {gradients_[row], accumulate};
  }
  /// The micro-batch's contributions to this row are complete.
  void notify(size_t row) { (void)row; }

 private:
  const ParameterBuffers& gradients_;
  std::vector<bool> written_;
};

}  // namespace yoke
