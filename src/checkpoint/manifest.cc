#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "checkpoint/json.h"
#include "checkpoint/text.h"

namespace yoke {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// -1 when the name isn't that of a checkpoint.
int64_t step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, step);
  return error == std::errc() && stop == end && step >= 0 && checkpoint_name(step) == name ? step : -1;
}

std::string file_fault(const fs::path& folder, const json& file, CheckDepth depth) {
  if (!file.is_object() || !file.contains("name") || !file["name"].is_string() || !file.contains("bytes") ||
      !file["bytes"].is_number_unsigned() || !file.contains("xxh3") || !file["xxh3"].is_string()) {
    return "the manifest is malformed";
  }
  const auto name = file["name"].get<std::string>();
  if (name.empty() || name.find('/') != name.npos || name.starts_with('.')) {
    return fmt::format("the manifest names the file {}", shown(name));
  }
  std::error_code error;
  const uintmax_t size = fs::file_size(folder / name, error);
  if (error) return fmt::format("{} can't be read: {}", name, error.message());
  const auto bytes = file["bytes"].get<uint64_t>();
  if (size != bytes) return fmt::format("{} has {} bytes instead of {}", name, size, bytes);
  if (depth == CheckDepth::hashes && hash_file(folder / name) != file["xxh3"].get<std::string>()) {
    return fmt::format("{} is damaged: its hash isn't the one that was written", name);
  }
  return "";
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:06}", step); }

std::string checkpoint_fault(const fs::path& path, CheckDepth depth, int reader, int readers) try {
  if (!fs::exists(path / kMarkerFile)) return "it was never completed (its marker is missing)";
  const std::string marker = read_file(path / kMarkerFile, 1024), text = read_file(path / kManifestFile, kMaxManifest);
  if (marker != hash_hex(text.data(), text.size()) + "\n") return "the manifest isn't the one that the marker names";
  const json manifest = parse_json(text, kManifestFile);
  if (!manifest.is_object() || manifest.value("format", json()) != kManifestFormat) {
    return fmt::format("its format is not {}, the one that this version of yoke reads", kManifestFormat);
  }
  if (!manifest.contains("files") || !manifest["files"].is_array()) return "the manifest is malformed";
  int nth = 0;
  for (const json& file : manifest["files"]) {
    const bool hashed = depth == CheckDepth::hashes && nth++ % readers == reader;
    const std::string fault = file_fault(path, file, hashed ? CheckDepth::hashes : CheckDepth::sizes);
    if (!fault.empty()) return fault;
  }
  return "";
} catch (const UserError& error) {
  return error.what();
} catch (const fs::filesystem_error& error) {
  return error.what();
}

json shape_json(const Shape& shape) {
  json dims = json::array();
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

Shape shape_of_json(const json& value, const std::string& file) {
  bool legal = value.is_array() && value.size() <= Shape::kMaxRank;
  std::array<int64_t, Shape::kMaxRank> dims{};
  for (size_t i = 0; legal && i < value.size(); ++i) {
    legal = value[i].is_number_unsigned() && value[i].get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    if (legal) dims[i] = value[i].get<int64_t>();
  }
  if (!legal) fail_file("{}: holds a shape that isn't a list of up to {} whole numbers.", file, int{Shape::kMaxRank});
  return make_shape(dims, static_cast<int>(value.size()));
}

std::vector<CheckpointEntry> find_checkpoints(const fs::path& folder, CheckDepth depth) {
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder, error)) {
    const int64_t step = step_of(item.path().filename().string());
    if (step >= 0 && item.is_directory()) entries.push_back({item.path(), step, checkpoint_fault(item.path(), depth)});
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return entries;
}

void clean_checkpoints(const fs::path& folder) { clean_temporary_folders(folder); }

}  // namespace yoke
