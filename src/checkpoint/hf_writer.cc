#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/text.h"

namespace yoke {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSmallFiles = uint64_t{1} << 20;  // room for JSON files and headers
constexpr int64_t kPieceElements = 1 << 18;

/// One tensor of the files: a part of a row, and the hash of the bytes that were written for it.
struct Piece {
  size_t row = 0;
  const ParameterPart* part = nullptr;
  SafetensorsWriter::Item item;
  uint64_t bytes = 0;
  std::string hash;
};

struct Shard {
  std::string file;
  std::vector<Piece> pieces;
};

/// Cuts the table's parts, in order, into files of at most `limit` bytes of data.
std::vector<Shard> make_shards(const ParameterTable& table, DType dtype, uint64_t limit) {
  std::vector<Shard> shards;
  uint64_t filled = 0;
  for (size_t r = 0; r < table.size(); ++r) {
    const ParameterRow& row = table[r];
    for (const ParameterPart& part : row.parts) {
      std::vector<int64_t> shape = {part.rows};
      if (row.shape.rank() == 2) shape.push_back(row.shape.cols());
      const int64_t elements =
          row.shape.rank() == 2 ? checked_product(part.rows, row.shape.cols(), "tensor") : part.rows;
      const uint64_t bytes = static_cast<uint64_t>(elements) * size_of(dtype);
      if (shards.empty() || (filled > 0 && filled + bytes > limit)) {
        shards.emplace_back();
        filled = 0;
      }
      filled += bytes;
      shards.back().pieces.push_back({r, &part, {part.name, dtype, shape}, bytes, {}});
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

/// Bytes of a part, converted piece by piece.
void write_part(const TensorView& row, const ParameterPart& part, DType dtype, SafetensorsWriter* writer,
                Hasher* hasher, std::vector<char>* buffer) {
  const bool flat = row.shape.rank() == 1 || row.contiguous();
  const int64_t cols = row.shape.rank() == 1 ? 1 : row.cols();
  const int64_t stride = flat ? cols : row.row_stride;
  const auto source_bytes = static_cast<int64_t>(size_of(row.dtype)),
             target_bytes = static_cast<int64_t>(size_of(dtype));
  const char* from = row.as<const char>() + part.row * stride * source_bytes;
  const int64_t runs = flat ? 1 : part.rows, run = flat ? part.rows * cols : cols;
  for (int64_t r = 0; r < runs; ++r) {
    for (int64_t i = 0; i < run; i += kPieceElements) {
      const int64_t n = std::min(kPieceElements, run - i);
      convert_elements(from + (r * stride + i) * source_bytes, row.dtype, buffer->data(), dtype, n);
      writer->write(buffer->data(), static_cast<size_t>(n * target_bytes));
      hasher->update(buffer->data(), static_cast<size_t>(n * target_bytes));
    }
  }
}

void write_weights(const fs::path& folder, const ParameterTable& table, const RowView& view, DType dtype,
                   std::vector<Shard>* shards) {
  std::vector<char> buffer(static_cast<size_t>(kPieceElements) * size_of(dtype));
  std::optional<size_t> current;
  TensorView row;
  for (Shard& shard : *shards) {
    std::vector<SafetensorsWriter::Item> items;
    for (const Piece& piece : shard.pieces) items.push_back(piece.item);
    SafetensorsWriter writer(folder / shard.file, items, {{"format", "pt"}});
    for (Piece& piece : shard.pieces) {
      if (current != piece.row) {
        row = view(piece.row);
        current = piece.row;
        YOKE_ASSERT(row.data != nullptr && row.shape == table[piece.row].shape && is_float(row.dtype), "{} is {}",
                    table[piece.row].name, row.str());
      }
      Hasher hasher;
      write_part(row, *piece.part, dtype, &writer, &hasher, &buffer);
      piece.hash = hasher.hex();
    }
    writer.commit();
  }
}

std::string make_index(const std::vector<Shard>& shards) {
  nlohmann::json map = nlohmann::json::object();
  uint64_t total = 0;
  for (const Shard& shard : shards) {
    for (const Piece& piece : shard.pieces) {
      map[piece.item.name] = shard.file;
      total += piece.bytes;
    }
  }
  return nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n";
}

[[noreturn]] void fail_read_back(const fs::path& file, const std::string& what) {
  fail_file("{}: reading back what was written: {}. The disk or the memory is faulty; nothing was replaced.",
            file.string(), what);
}

/// Every tensor must be in its file with the name, shape and bytes that were written.
void check_weights(const fs::path& folder, const std::vector<Shard>& shards) {
  for (const Shard& shard : shards) {
    const SafetensorsFile file(folder / shard.file);
    if (file.tensors().size() != shard.pieces.size()) {
      fail_read_back(file.path(), fmt::format("{} tensors instead of {}", file.tensors().size(), shard.pieces.size()));
    }
    for (const Piece& piece : shard.pieces) {
      const StoredTensor* tensor = file.find(piece.item.name);
      if (tensor == nullptr) fail_read_back(file.path(), piece.item.name + " is missing");
      if (tensor->shape != piece.item.shape || tensor->type->dtype != piece.item.dtype) {
        fail_read_back(file.path(), fmt::format("{} is {}", piece.item.name, tensor->str()));
      }
      Hasher hasher;
      file.for_each_piece(*tensor,
                          [&](size_t, std::span<const uint8_t> bytes) { hasher.update(bytes.data(), bytes.size()); });
      if (hasher.hex() != piece.hash) fail_read_back(file.path(), piece.item.name + " has other bytes");
    }
  }
}

void write_checked(const fs::path& path, const std::string& content) {
  write_file(path, content);
  if (read_file(path) != content) fail_read_back(path, "it has other bytes");
}

bool is_model_file(const std::string& name, const std::vector<fs::path>& carried) {
  if (name == "config.json" || name == "generation_config.json" || name == "model.safetensors.index.json") return true;
  if (name.starts_with("model") && name.ends_with(".safetensors")) return true;
  return std::ranges::any_of(carried, [&](const fs::path& path) { return path.filename() == name; });
}

/// What is replaced is deleted, so it must be nothing but an earlier model.
void check_replaceable(const fs::path& folder, const std::vector<fs::path>& carried) {
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder)) fail_file("{}: is a file; a model needs a folder.", folder.string());
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() || !is_model_file(name, carried)) {
      fail_file(
          "{}: holds {}, which isn't part of a model that yoke writes and would be deleted. Choose another folder.",
          folder.string(), shown(name));
    }
  }
}

}  // namespace

void write_hf_model(const fs::path& folder, const ModelConfig& config, const nlohmann::json& original_config,
                    const ParameterTable& table, const RowView& view, const HfModelOptions& options) {
  YOKE_ASSERT(options.dtype == DType::f32 || options.dtype == DType::bf16 || options.dtype == DType::f16);
  YOKE_ASSERT(table.elements() == config.parameters());
  check_replaceable(folder, options.carried);
  std::vector<std::pair<std::string, std::string>> small;  // name, content
  small.emplace_back("config.json", make_hf_config(config, original_config, options.dtype).dump(2) + "\n");
  bool carries_generation = false;
  for (const fs::path& path : options.carried) {
    const std::string name = path.filename().string();
    if (name == "config.json" || name.ends_with(".safetensors") || name == "model.safetensors.index.json") continue;
    carries_generation |= name == "generation_config.json";
    small.emplace_back(name, read_file(path));
  }
  if (!carries_generation) {
    small.emplace_back("generation_config.json", make_generation_config(config).dump(2) + "\n");
  }
  std::vector<Shard> shards = make_shards(table, options.dtype, options.shard_bytes);
  if (shards.size() > 1) small.emplace_back("model.safetensors.index.json", make_index(shards));

  TemporaryFolder temporary(folder);
  uint64_t bytes = static_cast<uint64_t>(table.elements()) * size_of(options.dtype) + kSmallFiles;
  for (const auto& [name, content] : small) bytes += content.size();
  require_disk_space(temporary.path(), bytes, "the model");
  for (const auto& [name, content] : small) write_checked(temporary.path() / name, content);
  write_weights(temporary.path(), table, view, options.dtype, &shards);
  check_weights(temporary.path(), shards);
  temporary.publish();
}

}  // namespace yoke
