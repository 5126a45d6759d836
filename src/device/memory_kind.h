// What memory is for, and which part of a step is running: the two labels by which plans add memory up.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace yoke {

enum class MemoryKind {
  weights,               ///< in the type that blocks compute in
  master,                ///< the weights that the optimizer updates
  moments,               ///< the optimizer's state
  gradients,             ///< of parameters
  saved,                 ///< activations kept between forward and backward
  recomputed,            ///< activations written in forward and again in backward
  scratch,               ///< activations that nothing keeps
  activation_gradients,  ///< gradients of activations, in backward
  loss,                  ///< logits of a chunk, token losses
  batch,                 ///< tokens, targets, positions, the rotary table
  workspace,             ///< what an operation needs while it runs
};
inline constexpr size_t kMemoryKinds = 11;

inline constexpr std::array<std::string_view, kMemoryKinds> kMemoryKindNames{"weights",
                                                                             "master weights",
                                                                             "moments",
                                                                             "gradients",
                                                                             "activations, saved",
                                                                             "activations, recomputed",
                                                                             "activations, scratch",
                                                                             "activation gradients",
                                                                             "loss",
                                                                             "batch",
                                                                             "workspace"};

inline constexpr std::string_view name_of(MemoryKind kind) { return kMemoryKindNames[static_cast<size_t>(kind)]; }

/// A part of a step. The texts are literals.
struct Moment {
  const char* stage = "setup";  ///< "setup", "step", "evaluation"
  const char* part = "";        ///< "forward", "loss", "backward", "update", ...
  int64_t layer = -1;           ///< -1 outside the blocks
};

}  // namespace yoke
