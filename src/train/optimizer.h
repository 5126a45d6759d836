// Optimizers: what each keeps of a parameter between steps, and one update of one parameter. Allocation, checkpoints
// and plans read the same table of state tensors, whatever the optimizer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/store.h"
#include "ops/moment.h"

namespace yoke {

enum class OptimizerKind { adamw, muon, adafactor, sgd };
enum class MomentsFormat { fp32, bf16, int8 };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  /// bf16: rounded at random. int8: codes with a scale for each 256 elements; norms, biases and tensors of fewer than
  /// kSmallestQuantized elements stay fp32.
  MomentsFormat moments = MomentsFormat::fp32;  // adafactor: always fp32
  double momentum = 0.9;                        ///< of muon and sgd; sgd with 0 keeps nothing
  bool operator==(const OptimizerOptions&) const = default;
};

inline constexpr int64_t kSmallestQuantized = 4096;  ///< elements

/// What one optimizer update is told.
struct UpdateOptions {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0;
  double clip_norm = 0;   ///< 0: none
  double loss_scale = 1;  ///< fp16
  int64_t step = 1;       ///< Adam's count, 1 for the first update
  uint64_t seed = 0;      ///< of what is rounded at random
};

/// The stream of random numbers of one parameter and step, from step 1. Numbers of initial weights have streams below
/// 2^24.
inline uint64_t update_stream(int64_t step, size_t parameter) { return static_cast<uint64_t>(step) << 24 | parameter; }
inline constexpr int kPartBit =
    20;  ///< the parts of a parameter may have streams of their own, with this and higher bits

/// One tensor that an optimizer keeps of a parameter.
struct StateRow {
  const char* name;   ///< in checkpoints, before the parameter's name: "moments.first"
  const char* label;  ///< in plans: "first moment"
  DType dtype = DType::f32;
  Shape shape;
};

/// One update of one parameter.
struct ParameterUpdate {
  const ParameterRow& parameter;
  OptimizedWeights weights;           ///< of the parameter's shape, or [n] of its elements
  TensorView gradient;                ///< f32 | bf16, of that shape
  std::span<const TensorView> state;  ///< as Optimizer::state() lists them
  const UpdateOptions& options;
  float gradient_scale = 1;  ///< clip factor / loss scale
  RandomStream random;       ///< of this parameter and step: see update_stream()

  float learning_rate() const { return static_cast<float>(options.learning_rate); }
  /// Decoupled weight decay of this parameter.
  float weight_decay() const { return parameter.decays() ? static_cast<float>(options.weight_decay) : 0.0f; }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Of a parameter of which this rank updates `held`: the parameter's shape, or [n] of its elements. All of them are
  /// zeros before the first update.
  virtual std::vector<StateRow> state(const ParameterRow& parameter, const Shape& held) const = 0;
  /// Workspace from ctx.arena.
  virtual void update(Context& ctx, const ParameterUpdate& u) const = 0;
};

std::unique_ptr<const Optimizer> make_optimizer(const OptimizerOptions& options);

/// The table: every state tensor of every parameter.
class OptimizerState {
 public:
  /// `pieces`: what of each parameter this rank updates; perhaps absent.
  OptimizerState(Arena& arena, const Optimizer& optimizer, const ParameterTable& parameters,
                 const ParameterBuffers& pieces);

  struct Tensor {
    StateRow row;
    size_t parameter = 0;
    TensorView view;
  };
  /// In order of parameters.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  std::span<const TensorView> of(size_t parameter) const;
  /// Zeros, as before the first update.
  void clear(Context& ctx) const;

 private:
  std::vector<Tensor> tensors_;
  std::vector<TensorView> views_;  // of tensors_
  std::vector<size_t> first_;      // [parameters + 1]: where a parameter's tensors begin
};

}  // namespace yoke
