#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/text.h"
#include "checkpoint/together.h"
#include "checkpoint/training_state.h"

namespace yoke {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Copies the box `part` from the memory of box `source` to that of box `target`, row by row of the last dimension.
/// done(begin, end) says which bytes of the source are not needed any more, a few MiB at a time.
template <class Done>
void copy_box(const Region& part, const Region& source, const uint8_t* from, const Region& target, uint8_t* to,
              int64_t element_bytes, const Done& done) {
  constexpr auto kPiece = static_cast<int64_t>(SafetensorsFile::kPieceBytes);
  const int rank = part.shape.rank();
  const int64_t run = part.shape.cols() * element_bytes;
  std::array<int64_t, Shape::kMaxRank> position = part.offset;
  int64_t released = 0;  // bytes of the source
  for (int64_t r = 0; r < part.shape.rows(); ++r) {
    const int64_t at = index_in(source, position) * element_bytes;
    for (int64_t i = 0; i < run; i += kPiece) {
      const int64_t count = std::min(kPiece, run - i);
      std::memcpy(to + index_in(target, position) * element_bytes + i, from + at + i, static_cast<size_t>(count));
      if (at + i + count - released < kPiece && r + 1 < part.shape.rows()) continue;
      done(static_cast<size_t>(released), static_cast<size_t>(at + i + count));
      released = at + i + count;
    }
    for (int i = rank - 2; i >= 0; --i) {
      const auto d = static_cast<size_t>(i);
      if (++position[d] < part.offset[d] + part.shape[i]) break;
      position[d] = part.offset[d];
    }
  }
}

}  // namespace

json checkpoint_state(const fs::path& path) {
  return parse_json(read_file(path / kStateFile, kMaxCheckpointJson), (path / kStateFile).string());
}

Checkpoint::Checkpoint(const fs::path& path, const Parallel& parallel) : path_(path) {
  together(parallel, [&] {
    const Mesh& mesh = parallel.mesh();
    const std::string fault = checkpoint_fault(path, CheckDepth::hashes, mesh.rank(), mesh.sizes().ranks());
    if (!fault.empty()) fail_file("{}: can't be resumed from: {}.", path.string(), fault);
    state_ = checkpoint_state(path);
    read_manifest();
    return std::string();
  });
}

void Checkpoint::read_manifest() {
  const std::string file = (path_ / kManifestFile).string();
  const json manifest = parse_json(read_file(file, kMaxManifest), file);
  std::map<std::string, const SafetensorsFile*> opened;
  try {
    step_ = manifest.at("step").get<int64_t>();
    for (const auto& [name, value] : manifest.at("tensors").items()) {
      Tensor& tensor = tensors_[name];
      tensor.global = shape_of_json(value.at("shape"), file);
      for (const json& piece : value.at("pieces")) {
        const SafetensorsFile*& source = opened[piece.at("file").get<std::string>()];
        if (source == nullptr) {
          files_.push_back(std::make_unique<SafetensorsFile>(path_ / piece.at("file").get<std::string>()));
          source = files_.back().get();
        }
        Region region{{}, shape_of_json(piece.at("shape"), file)};
        const Shape offset = shape_of_json(piece.at("offset"), file);
        for (int i = 0; i < offset.rank(); ++i) region.offset[static_cast<size_t>(i)] = offset[i];
        const StoredTensor* stored = source->find(piece.at("stored").get<std::string>());
        if (stored == nullptr || !stored->type->dtype || value.at("dtype") != stored->type->name ||
            shape_json(region.shape) != json(stored->shape) || offset.rank() != region.shape.rank() ||
            !inside(region, tensor.global)) {
          fail_file("{}: tensor {} doesn't fit the file that holds it.", file, shown(name));
        }
        tensor.dtype = *stored->type->dtype;
        tensor.pieces.push_back({source, stored, region});
      }
    }
  } catch (const json::exception& error) {
    fail_file("{}: is malformed: {}.", file, shown(error.what()));
  }
}

std::unique_ptr<Checkpoint> Checkpoint::newest(const fs::path& folder, const Parallel& parallel) {
  // All ranks walk through what rank 0 finds.
  const json found = json::parse(on_first(parallel, [&] {
    json entries = json::array();
    for (const CheckpointEntry& entry : find_checkpoints(folder, CheckDepth::sizes)) {
      entries.push_back({{"name", entry.path.filename().string()}, {"fault", entry.fault}});
    }
    return entries.dump(-1, ' ', false, json::error_handler_t::replace);
  }));
  for (const json& entry : found) {
    const fs::path path = folder / entry.at("name").get<std::string>();
    auto fault = entry.at("fault").get<std::string>();
    if (fault.empty()) {
      try {
        return std::make_unique<Checkpoint>(path, parallel);
      } catch (const UserError& error) {
        if (error.code() != ExitCode::bad_file) throw;
        fault = error.what();
      }
    }
    if (parallel.first()) log::warn("Skipped the checkpoint {}: {}.", path.string(), fault);
  }
  return nullptr;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

void Checkpoint::read(const std::string& name, const Shape& global, const Region& region,
                      const TensorView& destination) const {
  YOKE_ASSERT(destination.shape == region.shape && destination.contiguous() && inside(region, global), "{}", name);
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail_file("{}: has no tensor {}; it is of another run.", path_.string(), shown(name));
  const Tensor& tensor = found->second;
  if (!(tensor.global == global) || tensor.dtype != destination.dtype) {
    fail_file("{}: tensor {} is {} {}, but this run needs {} {}; the checkpoint is of another run.", path_.string(),
              shown(name), name_of(tensor.dtype), tensor.global.str(), name_of(destination.dtype), global.str());
  }
  int64_t covered = 0;
  for (const Piece& piece : tensor.pieces) {
    const auto part = intersection(region, piece.region);
    if (!part) continue;
    copy_box(*part, piece.region, piece.file->bytes(*piece.tensor).data(), region, destination.as<uint8_t>(),
             static_cast<int64_t>(size_of(tensor.dtype)),
             [&](size_t begin, size_t end) { piece.file->release(*piece.tensor, begin, end - begin); });
    covered += part->shape.elements();
  }
  if (covered != region.shape.elements()) {
    fail_file("{}: the pieces of tensor {} hold {} of the {} elements that are needed.", path_.string(), shown(name),
              covered, region.shape.elements());
  }
}

}  // namespace yoke
