// Stores: where block code gets its weights and leaves its gradients. How either is sharded, gathered or reduced hides
// behind these calls.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "device/context.h"
#include "model/parameters.h"

namespace yoke {

/// One tensor for each row of a parameter table.
class ParameterBuffers {
 public:
  ParameterBuffers() = default;
  ParameterBuffers(Arena& arena, const char* name, const ParameterTable& table, DType dtype, MemoryKind kind);
  explicit ParameterBuffers(std::vector<TensorView> views) : views_(std::move(views)) {}
  const TensorView& operator[](size_t row) const { return views_[row]; }
  size_t size() const { return views_.size(); }

 private:
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
    TensorView gradient;      ///< shape of the parameter; f32, or for matrices, embedding and head perhaps bf16
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
  /// The micro-batch's contributions to this row are complete, and its weight is not read again in this backward pass.
  void notify(size_t row) {
    if (consumer_) consumer_(row);
  }
  /// What notify() calls from now on: a gradient may be used up there and then, after which its memory may hold that of
  /// another row. An empty function: nothing.
  void consume_with(std::function<void(size_t row)> consumer) { consumer_ = std::move(consumer); }

 private:
  const ParameterBuffers& gradients_;
  std::vector<bool> written_;
  std::function<void(size_t)> consumer_;
};

}  // namespace yoke
