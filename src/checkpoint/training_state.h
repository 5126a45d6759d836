// Resumable training checkpoints: `checkpoints/step-000200/` with the trainer's state as JSON, named tensors in
// safetensors files, a manifest with sizes and hashes of all files, and a marker that is written last.
//
// Tensors are stored as pieces of a global tensor, each with its place in it, so that a run with another layout can
// read any region. Every rank writes its own pieces, to files of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/region.h"
#include "checkpoint/safetensors.h"
#include "comm/parallel.h"

namespace yoke {

/// What one rank saves of a tensor. The pieces of all ranks hold each tensor exactly once. `view` gives contiguous host
/// memory of region.shape when its turn comes; it is used until the next view is asked for.
struct StatePiece {
  std::string name;  ///< "moments.first.layers.0.attention.qkv"
  DType dtype = DType::f32;
  Shape global;
  Region region;
  std::function<TensorView()> view;
};

/// Writes step `step` to `folder` (".../checkpoints"), then removes all but the `keep` newest complete checkpoints; the
/// new one always stays. Every rank calls it with its own pieces and returns when the checkpoint has its name; step,
/// state and keep are rank 0's. UserError (bad_file) on all ranks, with one message, when the disk is full or fails on
/// any of them: what was there before stays, nothing else is left behind, and training can go on. UserError (usage)
/// when a rank doesn't see rank 0's folder. `state` must be finite numbers and UTF-8.
void save_checkpoint(const Parallel& parallel, const std::filesystem::path& folder, int64_t step,
                     const nlohmann::json& state, const std::vector<StatePiece>& pieces, int keep);

struct CheckpointEntry {
  std::filesystem::path path;
  int64_t step = 0;
  std::string fault;  ///< why it can't be used; empty when it is whole
};

enum class CheckDepth {
  sizes,   ///< marker, manifest, presence and size of every file
  hashes,  ///< and every byte
};

/// All step folders, newest first. None when `folder` doesn't exist.
std::vector<CheckpointEntry> find_checkpoints(const std::filesystem::path& folder, CheckDepth depth);

/// The state that was saved with the checkpoint in `path`, its files not checked. UserError (bad_file) when it can't be
/// read or is no JSON.
nlohmann::json checkpoint_state(const std::filesystem::path& path);

/// A checkpoint that is open for reading.
class Checkpoint {
 public:
  /// Checks every byte. UserError (bad_file) with the fault when it isn't whole.
  explicit Checkpoint(const std::filesystem::path& path) : Checkpoint(path, Parallel::self()) {}
  /// The same by all ranks together, each checking the bytes of some files; a fault is known to all.
  Checkpoint(const std::filesystem::path& path, const Parallel& parallel);

  /// The newest one in `folder` that is whole, or null; the same on all ranks. Those that are skipped are logged with
  /// the reason.
  static std::unique_ptr<Checkpoint> newest(const std::filesystem::path& folder,
                                            const Parallel& parallel = Parallel::self());

  const std::filesystem::path& path() const { return path_; }
  int64_t step() const { return step_; }
  const nlohmann::json& state() const { return state_; }
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// Of a tensor that it has.
  DType dtype(const std::string& name) const { return tensors_.at(name).dtype; }
  const Shape& shape(const std::string& name) const { return tensors_.at(name).global; }
  /// Fills contiguous host memory with a region of a tensor. UserError (bad_file) when the tensor is missing, has
  /// another global shape or type, or its pieces don't cover the region.
  void read(const std::string& name, const Shape& global, const Region& region, const TensorView& destination) const;

 private:
  struct Piece {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
    Region region;
  };
  struct Tensor {
    DType dtype = DType::f32;
    Shape global;
    std::vector<Piece> pieces;
  };

  void read_manifest();

  std::filesystem::path path_;
  int64_t step_ = 0;
  nlohmann::json state_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor> tensors_;
};

/// Removes what interrupted saves left in `folder`. Called once when training starts, before newest().
void clean_checkpoints(const std::filesystem::path& folder);

}  // namespace yoke
