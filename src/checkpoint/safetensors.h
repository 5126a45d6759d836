// The safetensors format: a little-endian 64-bit length, a JSON header of that length, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/tensor.h"

namespace yoke {

/// An element type of the format. Types without a DType can be listed and copied, not converted.
struct StoredType {
  std::string_view name;  ///< "BF16"
  int bits = 0;
  std::optional<DType> dtype;
};

const StoredType& stored_type(DType dtype);

struct StoredTensor {
  std::string name;
  const StoredType* type = nullptr;  ///< never null
  std::vector<int64_t> shape;
  uint64_t begin = 0;  ///< bytes from the start of the data, which need not be aligned
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  int64_t elements() const;
  std::string str() const;  ///< "BF16 [768, 2048]"
};

using StoredMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< in the order of their bytes, which follow one another without holes
  StoredMetadata metadata;            ///< "__metadata__"
  uint64_t data_begin = 0;            ///< position of the first tensor's bytes in the file
};

/// Parses and checks the header of a file of `file_bytes` bytes that begins with `start` (the whole file, or at least
/// its header). UserError (bad_file) that names `file`, the tensor, what was found and what is legal.
SafetensorsHeader parse_safetensors(std::string_view start, uint64_t file_bytes, std::string_view file);

/// A file that is mapped for reading.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const StoredMetadata& metadata() const { return header_.metadata; }
  const StoredTensor* find(std::string_view name) const;  ///< null when the file doesn't have it
  /// The tensor's bytes, valid as long as this object lives.
  std::span<const uint8_t> bytes(const StoredTensor& tensor) const;
  /// visit(begin, bytes) for the tensor's bytes in pieces, in order; a piece's memory is given back to the system when
  /// the visit ends, so that a large tensor never is in memory as a whole.
  template <class Visit>
  void for_each_piece(const StoredTensor& tensor, const Visit& visit) const {
    const auto all = bytes(tensor);
    for (size_t begin = 0; begin < all.size(); begin += kPieceBytes) {
      const auto piece = all.subspan(begin, std::min(kPieceBytes, all.size() - begin));
      visit(begin, piece);
      release(tensor, begin, piece.size());
    }
  }
  /// Gives the pages of these bytes back to the system; they are read again when touched again.
  void release(const StoredTensor& tensor, size_t begin, size_t bytes) const;
  static constexpr size_t kPieceBytes = size_t{4} << 20;  // whole elements of every type

 private:
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> index_;
};

struct SafetensorsItem {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

/// What a file of these tensors, in this order, begins with, and where everything is in it.
struct SafetensorsPlan {
  std::string header;               ///< length and JSON, padded so that the data begins at a multiple of 8
  std::vector<uint64_t> positions;  ///< of each tensor's bytes in the file
  uint64_t file_bytes = 0;
};
SafetensorsPlan plan_safetensors(const std::vector<SafetensorsItem>& tensors, const StoredMetadata& metadata);

/// Writes a file without holding more than a buffer of it: the header comes from the shapes, then the bytes of the
/// tensors follow in the order of `tensors`, in pieces of any size.
class SafetensorsWriter {
 public:
  using Item = SafetensorsItem;

  SafetensorsWriter(const std::filesystem::path& path, const std::vector<Item>& tensors,
                    const StoredMetadata& metadata);

  void write(const void* data, size_t bytes);
  /// Every tensor must have been written. Fsync, rename; the XXH3 of the whole file.
  std::string commit();
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  uint64_t file_bytes_ = 0;
  FileWriter file_;
  Hasher hasher_;
};

}  // namespace yoke
