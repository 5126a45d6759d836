// What a rank holds of a run's state, as files see it: boxes of the whole model's tensors, of which every element is
// written by one rank and read by all that need it.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/hf_model.h"
#include "checkpoint/layout.h"
#include "checkpoint/moments.h"
#include "checkpoint/training_state.h"
#include "train/engine.h"

namespace yoke {

class HeldState {
 public:
  /// Called on all ranks together. `engine` and `ctx` have to outlive it.
  HeldState(const Engine& engine, Context& ctx);

  /// What this rank saves: master weights and the optimizer's tensors. Called on all ranks together.
  std::vector<StatePiece> pieces() const;
  /// What this rank writes of the model, by rows of the whole model's table.
  std::vector<WeightPiece> weights() const;

  /// Fills all that the rank holds from a checkpoint of any layout.
  void read(const Checkpoint& checkpoint) const;
  /// Fills the master weights. `reader`: of the whole model's table.
  void read_weights(const WeightReader& reader) const;

 private:
  /// A tensor of this rank, of which it holds a range of elements and writes perhaps less.
  struct Held {
    std::string name;  ///< in checkpoints
    TensorLayout layout;
    FlatRange held, written;
    TensorView view;         ///< the elements `held`, contiguous
    size_t row = 0;          ///< in the whole model's table
    std::string scale_name;  ///< of a moment that some layout may keep in 8 bits; else ""
    TensorView scale;        ///< of a moment that this layout keeps in 8 bits; else absent
    bool is_signed = true;   ///< of such a moment
  };

  void add_weights(const std::vector<bool>& writes);
  void add_optimizer(const std::vector<bool>& writes);
  FlatRange written_of(size_t row, const FlatRange& held) const;
  QuantizedMoment quantized(const Held& moment) const;
  void read(const Checkpoint& checkpoint, const Held& held) const;
  StatePiece piece_of(const Held& held, const FlatPiece& piece) const;

  const Engine& engine_;
  Context& ctx_;
  std::vector<Held> weights_, optimizer_;
};

}  // namespace yoke
