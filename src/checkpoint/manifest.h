// The manifest and marker of a checkpoint folder: which files make it up, and whether they are all there, unharmed.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/training_state.h"

namespace yoke {

inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kMarkerFile = "complete";
inline constexpr int kManifestFormat = 1;
inline constexpr size_t kMaxCheckpointJson = size_t{16} << 20;
inline constexpr size_t kMaxManifest = size_t{1} << 30;  // it grows with the pieces of all ranks

/// "step-000200"
std::string checkpoint_name(int64_t step);

/// Why the folder isn't a whole checkpoint; "" when it is one. Of several readers that share the work, each looks into
/// every `readers`-th file.
std::string checkpoint_fault(const std::filesystem::path& path, CheckDepth depth, int reader = 0, int readers = 1);

nlohmann::json shape_json(const Shape& shape);
/// A shape from a manifest; fails with UserError (bad_file) on anything else.
Shape shape_of_json(const nlohmann::json& value, const std::string& file);

}  // namespace yoke
