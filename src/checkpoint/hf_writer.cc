#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/hf_weights.h"
#include "checkpoint/text.h"
#include "checkpoint/together.h"

namespace yoke {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSmallFiles = uint64_t{1} << 20;  // room for JSON files and headers

void write_checked(const fs::path& path, const std::string& content) {
  write_file(path, content);
  if (read_file(path) != content) {
    fail_file("{}: reading back what was written: it has other bytes. The disk or the memory is faulty.",
              path.string());
  }
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

/// Names and contents of all files but the weights.
std::vector<std::pair<std::string, std::string>> small_files(const ModelConfig& config,
                                                             const nlohmann::json& original_config,
                                                             const HfModelOptions& options) {
  std::vector<std::pair<std::string, std::string>> small;
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
  return small;
}

}  // namespace

void write_hf_model(const Parallel& parallel, const fs::path& folder, const ModelConfig& config,
                    const nlohmann::json& original_config, const ParameterTable& table,
                    const std::vector<WeightPiece>& pieces, const HfModelOptions& options) {
  YOKE_ASSERT(options.dtype == DType::f32 || options.dtype == DType::bf16 || options.dtype == DType::f16);
  YOKE_ASSERT(table.elements() == config.parameters());
  const HfWeights weights(table, options.dtype, options.shard_bytes);
  std::optional<TemporaryFolder> temporary;  // rank 0's
  on_first(parallel, [&] {
    check_replaceable(folder, options.carried);
    auto small = small_files(config, original_config, options);
    if (const std::string index = weights.index(); !index.empty()) {
      small.emplace_back("model.safetensors.index.json", index);
    }
    temporary.emplace(folder);
    uint64_t bytes = weights.bytes() + kSmallFiles;
    for (const auto& [name, content] : small) bytes += content.size();
    require_disk_space(temporary->path(), bytes, "the model");
    for (const auto& [name, content] : small) write_checked(temporary->path() / name, content);
    weights.create(temporary->path());
    return std::string();
  });
  const fs::path unfinished = TemporaryFolder::path_of(folder);
  require_shared_folder(parallel, unfinished);
  const auto written = together(parallel, [&] { return weights.write(unfinished, pieces); });
  together(parallel, [&] {
    if (parallel.first()) {
      weights.check_written(written);
      weights.check_headers(unfinished);
    }
    weights.check_bytes(unfinished, written[static_cast<size_t>(parallel.mesh().rank() + 1) % written.size()]);
    return std::string();
  });
  on_first(parallel, [&] {
    temporary->publish();
    return std::string();
  });
}

void write_hf_model(const fs::path& folder, const ModelConfig& config, const nlohmann::json& original_config,
                    const ParameterTable& table, const RowView& view, const HfModelOptions& options) {
  std::vector<WeightPiece> pieces;
  for (size_t row = 0; row < table.size(); ++row) {
    pieces.push_back({row, Region::whole(table[row].shape), [&view, row] { return view(row); }});
  }
  write_hf_model(Parallel::self(), folder, config, original_config, table, pieces, options);
}

}  // namespace yoke
