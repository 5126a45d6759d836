// The weights of a Hugging Face model folder: model.safetensors, or shards with model.safetensors.index.json.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/region.h"
#include "checkpoint/safetensors.h"
#include "comm/parallel.h"
#include "model/parameters.h"

namespace yoke {

/// Reads weights row by row of the parameter table; only the piece that is being converted is in memory.
class WeightReader {
 public:
  /// Opens the files and checks every name and shape. UserError (bad_file) that lists all that is missing, unexpected
  /// or of a wrong shape or type. Buffers of rotary frequencies are ignored. A tied model may have lm_head.weight if it
  /// equals the embedding, or have only that one.
  WeightReader(const std::filesystem::path& folder, const ParameterTable& table);
  ~WeightReader();

  /// Fills host memory of the row's shape and any float type with the row's parts.
  void read(size_t row, const TensorView& destination) const;
  /// Fills contiguous host memory of region.shape with a box of the row; only that is read from the files.
  void read(size_t row, const Region& region, const TensorView& destination) const;

  /// The type of most elements in the files.
  DType dtype() const { return dtype_; }

 private:
  struct Source {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  void open(const std::filesystem::path& folder);
  std::string match(const std::filesystem::path& folder);
  void check_tied_head(const std::filesystem::path& folder, const Source& embedding, const Source& head) const;

  const ParameterTable& table_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::vector<Source>> sources_;  ///< [row][part]
  DType dtype_ = DType::f32;
};

struct HfModelOptions {
  DType dtype = DType::bf16;                   ///< fp32, bf16 or fp16
  uint64_t shard_bytes = 5'000'000'000;        ///< larger models are cut into files of at most this size
  std::vector<std::filesystem::path> carried;  ///< files copied as they are: the tokenizer's, generation_config.json
};

/// What one rank writes of a row of the table: `view` gives contiguous host memory of region.shape, in any float type,
/// when its turn comes; it is used until the next view is asked for.
struct WeightPiece {
  size_t row = 0;
  Region region;
  std::function<TensorView()> view;
};

/// Writes a model folder: config.json, generation_config.json, weights, carried files. Every rank calls it with its own
/// pieces, which together hold each row of `table`, the whole model's, exactly once; a rank writes them in place, so
/// that nowhere more than a piece is in memory. The folder is filled under a temporary name; every file is read back,
/// by another rank than wrote it where there are several, and names, shapes and hashes are compared; then it takes its
/// name. A folder that is there already is replaced when it holds nothing but such files. UserError (bad_file) on all
/// ranks, on a full disk or a difference; nothing is left behind then, and what was there stays.
void write_hf_model(const Parallel& parallel, const std::filesystem::path& folder, const ModelConfig& config,
                    const nlohmann::json& original_config, const ParameterTable& table,
                    const std::vector<WeightPiece>& pieces, const HfModelOptions& options);

/// Contiguous host memory with all of a row, in any float type. Called once for each row, in order; the view is used
/// until the next call.
using RowView = std::function<TensorView(size_t row)>;

/// The same by one rank that has it all.
void write_hf_model(const std::filesystem::path& folder, const ModelConfig& config,
                    const nlohmann::json& original_config, const ParameterTable& table, const RowView& view,
                    const HfModelOptions& options);

}  // namespace yoke
