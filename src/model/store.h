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

/// Weights in the type that blocks compute in. This one has them all present; see sharded_store.h for the other.
class WeightStore {
 public:
  explicit WeightStore(ParameterBuffers weights) : weights_(std::move(weights)) {}
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;
  virtual ~WeightStore() = default;

  /// Makes the weights outside the blocks present until they change.
  virtual void begin(Context&) {}
  /// Starts to make a layer's weights present, where that is possible without taking those of a layer in use.
  virtual void gather(Context&, int64_t layer) { (void)layer; }
  /// Makes a layer's weights present, and keeps them until release().
  virtual void acquire(Context&, int64_t layer) { (void)layer; }
  virtual void release(int64_t layer) { (void)layer; }
  /// Every store of the weights has changed: what was gathered is of no use any more.
  virtual void changed() {}

  /// A row outside the blocks, or of a layer that is acquired.
  const TensorView& get(size_t row) const { return weights_[row]; }

 private:
  ParameterBuffers weights_;
};

/// Gradients, summed over the micro-batches of a step. This one belongs to a rank alone; see sharded_store.h for the
/// other.
class GradientStore {
 public:
  struct Slot {
    TensorView gradient;      ///< shape of the parameter; f32, or for matrices, embedding and head perhaps bf16
    bool accumulate = false;  ///< something of this step, or of what the store adds up itself, is already in it
  };

  explicit GradientStore(ParameterBuffers gradients)
      : gradients_(std::move(gradients)), written_(gradients_.size(), false) {}
  GradientStore(const GradientStore&) = delete;
  GradientStore& operator=(const GradientStore&) = delete;
  virtual ~GradientStore() = default;

  /// What follows belongs to a new step of so many micro-batches. `ctx` has to outlive the step.
  virtual void begin_step(Context& ctx, int64_t micro_batches);
  /// Where to write the next contribution.
  virtual Slot get(size_t row);
  /// The micro-batch's contributions to this row are complete, and its weight is not read again in this backward pass.
  virtual void notify(size_t row);
  /// Returns when the sums over all ranks are where they belong.
  virtual void finish_step() {}

  /// What notify() calls from now on: a gradient may be used up there and then, after which its memory may hold that of
  /// another row. An empty function: nothing.
  void consume_with(std::function<void(size_t row)> consumer) { consumer_ = std::move(consumer); }

 protected:
  bool written(size_t row) const { return written_[row]; }
  void forget(size_t row) { written_[row] = false; }

 private:
  ParameterBuffers gradients_;
  std::vector<bool> written_;
  std::function<void(size_t)> consumer_;
};

}  // namespace yoke
