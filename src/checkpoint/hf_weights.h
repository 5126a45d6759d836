// The weight files of a Hugging Face folder while it is written: who is where in which file, filled region by region by
// one rank or several, and read back.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/hf_model.h"

namespace yoke {

/// One tensor of the files: a part of a row of the table.
struct HfTensor {
  size_t row = 0;
  const ParameterPart* part = nullptr;
  Shape shape;
  uint64_t position = 0;  ///< of its bytes in the file
};

struct HfShard {
  std::string file;
  std::vector<HfTensor> tensors;
  SafetensorsPlan plan;
};

class HfWeights {
 public:
  /// The table's parts, in order, in files of at most `limit` bytes of data. The table has to outlive this.
  HfWeights(const ParameterTable& table, DType dtype, uint64_t limit);

  uint64_t bytes() const;  ///< of all tensors
  /// The text of model.safetensors.index.json; "" where there is a single file.
  std::string index() const;

  /// Makes the files, with their headers and room for the rest.
  void create(const std::filesystem::path& folder) const;
  /// Converts and writes; all of it is on the disk then. What was written, with hashes, as text for check().
  std::string write(const std::filesystem::path& folder, const std::vector<WeightPiece>& pieces) const;
  /// `written`: of all ranks. Each tensor must have been written exactly once.
  void check_written(const std::vector<std::string>& written) const;
  /// Every file must hold the tensors it should, by name, type and shape.
  void check_headers(const std::filesystem::path& folder) const;
  /// The bytes that one rank wrote must be there.
  void check_bytes(const std::filesystem::path& folder, const std::string& written) const;

 private:
  const ParameterTable& table_;
  DType dtype_;
  std::vector<HfShard> shards_;
};

}  // namespace yoke
