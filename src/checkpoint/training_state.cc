#include "checkpoint/training_state.h"

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"

namespace yoke {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr uint64_t kFileBytes = uint64_t{4} << 30;   // a new file begins where this would be exceeded
constexpr uint64_t kSmallFiles = uint64_t{1} << 20;  // room for JSON files and headers

uint64_t bytes_of(const StatePiece& piece) {
  return static_cast<uint64_t>(piece.region.shape.elements()) * size_of(piece.dtype);
}

/// Pieces of one file, as indices [begin, end).
struct File {
  std::string name;
  size_t begin = 0, end = 0;
};

std::vector<File> make_files(const std::vector<StatePiece>& pieces) {
  std::vector<File> files;
  uint64_t filled = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const uint64_t bytes = bytes_of(pieces[i]);
    if (files.empty() || (filled > 0 && filled + bytes > kFileBytes)) {
      files.push_back({fmt::format("rank-0000-{:05}.safetensors", files.size() + 1), i, i});
      filled = 0;
    }
    filled += bytes;
    files.back().end = i + 1;
  }
  return files;
}

/// Within a file a piece has the tensor's name; a tensor's further pieces get a number.
std::string stored_name(const std::string& name, size_t nth) {
  return nth == 0 ? name : fmt::format("{}#{}", name, nth);
}

json offset_json(const Region& region) {
  json offset = json::array();
  for (int i = 0; i < region.shape.rank(); ++i) offset.push_back(region.offset[static_cast<size_t>(i)]);
  return offset;
}

/// Writes the tensors; fills manifest["files"] and manifest["tensors"].
void write_tensors(const fs::path& folder, const std::vector<StatePiece>& pieces, json* manifest) {
  std::map<std::string, size_t> count;
  for (const File& file : make_files(pieces)) {
    std::vector<SafetensorsWriter::Item> items;
    for (size_t i = file.begin; i < file.end; ++i) {
      const StatePiece& piece = pieces[i];
      const std::string stored = stored_name(piece.name, count[piece.name]++);
      items.push_back({stored, piece.dtype, shape_json(piece.region.shape)});
      json& tensor = (*manifest)["tensors"][piece.name];
      tensor["dtype"] = stored_type(piece.dtype).name;
      tensor["shape"] = shape_json(piece.global);
      tensor["pieces"].push_back({{"file", file.name},
                                  {"stored", stored},
                                  {"offset", offset_json(piece.region)},
                                  {"shape", shape_json(piece.region.shape)}});
    }
    SafetensorsWriter writer(folder / file.name, items, {});
    for (size_t i = file.begin; i < file.end; ++i) {
      const TensorView view = pieces[i].view();
      YOKE_ASSERT(view.shape == pieces[i].region.shape && view.dtype == pieces[i].dtype && view.contiguous(),
                  "{} is {}", pieces[i].name, view.str());
      writer.write(view.data, view.bytes());
    }
    const std::string hash = writer.commit();
    (*manifest)["files"].push_back({{"name", file.name}, {"bytes", writer.file_bytes()}, {"xxh3", hash}});
  }
}

/// Only complete checkpoints count, and only complete ones are removed.
void remove_old(const fs::path& folder, int64_t newest, int keep) {
  int kept = 1;
  for (const CheckpointEntry& entry : find_checkpoints(folder, CheckDepth::sizes)) {
    if (!entry.fault.empty() || entry.step == newest) continue;
    if (kept < keep) {
      ++kept;
      continue;
    }
    // The marker goes first: what an interruption leaves is then seen to be incomplete.
    std::error_code error;
    fs::remove(entry.path / kMarkerFile, error);
    if (!error) fs::remove_all(entry.path, error);
    if (error) log::warn("{}: can't be removed: {}.", entry.path.string(), error.message());
  }
}

}  // namespace

void save_checkpoint(const fs::path& folder, int64_t step, const json& state, const std::vector<StatePiece>& pieces,
                     int keep) {
  YOKE_ASSERT(step >= 0 && keep >= 1);
  const std::string state_text = state.dump();
  YOKE_ASSERT(state_text.size() < kMaxCheckpointJson, "the trainer's state takes {} bytes", state_text.size());
  TemporaryFolder temporary(folder / checkpoint_name(step));
  uint64_t bytes = kSmallFiles + 2 * state_text.size();
  for (const StatePiece& piece : pieces) bytes += bytes_of(piece);
  require_disk_space(temporary.path(), bytes, "the checkpoint");

  json manifest = {{"format", kManifestFormat}, {"step", step}, {"files", json::array()}, {"tensors", json::object()}};
  write_tensors(temporary.path(), pieces, &manifest);
  write_file(temporary.path() / kStateFile, state_text);
  manifest["files"].push_back(
      {{"name", kStateFile}, {"bytes", state_text.size()}, {"xxh3", hash_hex(state_text.data(), state_text.size())}});
  const std::string manifest_text = manifest.dump(1);
  write_file(temporary.path() / kManifestFile, manifest_text);
  sync_folder(temporary.path());
  write_file(temporary.path() / kMarkerFile, hash_hex(manifest_text.data(), manifest_text.size()) + "\n");
  temporary.publish();
  remove_old(folder, step, keep);
}

}  // namespace yoke
