#include "checkpoint/training_state.h"

#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/together.h"

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

std::vector<File> make_files(const std::vector<StatePiece>& pieces, int rank) {
  std::vector<File> files;
  uint64_t filled = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const uint64_t bytes = bytes_of(pieces[i]);
    if (files.empty() || (filled > 0 && filled + bytes > kFileBytes)) {
      files.push_back({fmt::format("rank-{:04}-{:05}.safetensors", rank, files.size() + 1), i, i});
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

/// Writes this rank's tensors; what the manifest says of them.
json write_tensors(const fs::path& folder, const std::vector<StatePiece>& pieces, int rank) {
  json written = {{"files", json::array()}, {"tensors", json::object()}};
  std::map<std::string, size_t> count;
  for (const File& file : make_files(pieces, rank)) {
    std::vector<SafetensorsWriter::Item> items;
    for (size_t i = file.begin; i < file.end; ++i) {
      const StatePiece& piece = pieces[i];
      const std::string stored = stored_name(piece.name, count[piece.name]++);
      items.push_back({stored, piece.dtype, shape_json(piece.region.shape)});
      json& tensor = written["tensors"][piece.name];
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
    written["files"].push_back({{"name", file.name}, {"bytes", writer.file_bytes()}, {"xxh3", hash}});
  }
  return written;
}

/// Adds what one rank wrote to the manifest of all. Its files must be there.
void merge(const fs::path& folder, int rank, json written, json* manifest) {
  for (const json& file : written["files"]) {
    std::error_code error;
    const fs::path path = folder / file["name"].get<std::string>();
    const uintmax_t size = fs::file_size(path, error);
    if (error || size != file["bytes"].get<uint64_t>()) {
      fail_usage(
          "{}, which rank {} wrote, is not there as it was written. All ranks write to one folder: set `output` to a "
          "folder on a file system that every host mounts.",
          path.string(), rank);
    }
    (*manifest)["files"].push_back(file);
  }
  for (auto& [name, tensor] : written["tensors"].items()) {
    auto [found, fresh] = (*manifest)["tensors"].emplace(name, tensor);
    if (fresh) continue;
    YOKE_ASSERT((*found)["dtype"] == tensor["dtype"] && (*found)["shape"] == tensor["shape"], "{}", name);
    for (json& piece : tensor["pieces"]) (*found)["pieces"].push_back(std::move(piece));
  }
}

/// A checkpoint without an element, or with two of it, must never get its name.
void check_cover(const json& manifest) {
  for (const auto& [name, tensor] : manifest["tensors"].items()) {
    std::vector<Region> regions;
    for (const json& piece : tensor["pieces"]) {
      Region region{{}, shape_of_json(piece["shape"], kManifestFile)};
      for (size_t i = 0; i < piece["offset"].size(); ++i) region.offset[i] = piece["offset"][i].get<int64_t>();
      regions.push_back(region);
    }
    const std::string fault = cover_fault(shape_of_json(tensor["shape"], kManifestFile), std::move(regions));
    YOKE_ASSERT(fault.empty(), "pieces of {}: {}", name, fault);
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

void save_checkpoint(const Parallel& parallel, const fs::path& folder, int64_t step, const json& state,
                     const std::vector<StatePiece>& pieces, int keep) {
  YOKE_ASSERT(step >= 0 && keep >= 1);
  const fs::path target = folder / checkpoint_name(step);
  const int rank = parallel.mesh().rank();
  uint64_t bytes = kSmallFiles;
  for (const StatePiece& piece : pieces) bytes += bytes_of(piece);
  const std::vector<std::string> needed = together(parallel, [&] { return std::to_string(bytes); });

  std::optional<TemporaryFolder> temporary;  // rank 0's
  std::string state_text;
  on_first(parallel, [&] {
    state_text = state.dump();
    YOKE_ASSERT(state_text.size() < kMaxCheckpointJson, "the trainer's state takes {} bytes", state_text.size());
    temporary.emplace(target);
    uint64_t sum = 2 * state_text.size();
    for (const std::string& text : needed) sum += std::stoull(text);
    require_disk_space(temporary->path(), sum, "the checkpoint");
    return std::string();
  });
  const fs::path unfinished = TemporaryFolder::path_of(target);
  require_shared_folder(parallel, unfinished);
  const std::vector<std::string> written = together(parallel, [&] {
    const json mine = write_tensors(unfinished, pieces, rank);
    if (rank > 0) sync_folder(unfinished);
    return mine.dump();
  });
  on_first(parallel, [&] {
    json manifest = {
        {"format", kManifestFormat}, {"step", step}, {"files", json::array()}, {"tensors", json::object()}};
    for (size_t r = 0; r < written.size(); ++r) {
      merge(unfinished, static_cast<int>(r), json::parse(written[r]), &manifest);
    }
    check_cover(manifest);
    write_file(unfinished / kStateFile, state_text);
    manifest["files"].push_back(
        {{"name", kStateFile}, {"bytes", state_text.size()}, {"xxh3", hash_hex(state_text.data(), state_text.size())}});
    const std::string manifest_text = manifest.dump(1);
    write_file(unfinished / kManifestFile, manifest_text);
    sync_folder(unfinished);
    write_file(unfinished / kMarkerFile, hash_hex(manifest_text.data(), manifest_text.size()) + "\n");
    temporary->publish();
    remove_old(folder, step, keep);
    return std::string();
  });
}

}  // namespace yoke
