#include "checkpoint/hf_weights.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/convert.h"

namespace yoke {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kPieceElements = 1 << 18;

Shape shape_of(const ParameterRow& row, const ParameterPart& part) {
  return row.shape.rank() == 1 ? Shape{part.rows} : Shape{part.rows, row.shape.cols()};
}

std::vector<int64_t> dims_of(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

/// What was written of one tensor: a box, and the hash of its bytes in order.
struct Written {
  size_t shard = 0, tensor = 0;
  Region region;
  std::string hash;
};

json to_json(const Written& w) {
  json offset = json::array();
  for (int i = 0; i < w.region.shape.rank(); ++i) offset.push_back(w.region.offset[static_cast<size_t>(i)]);
  return {w.shard, w.tensor, offset, dims_of(w.region.shape), w.hash};
}

std::vector<Written> from_text(const std::string& text) {
  std::vector<Written> all;
  for (const json& one : json::parse(text)) {
    Written w{one[0].get<size_t>(), one[1].get<size_t>(), {}, one[4].get<std::string>()};
    std::array<int64_t, Shape::kMaxRank> dims{};
    for (size_t i = 0; i < one[3].size(); ++i) {
      w.region.offset[i] = one[2][i].get<int64_t>();
      dims[i] = one[3][i].get<int64_t>();
    }
    w.region.shape = make_shape(dims, static_cast<int>(one[3].size()));
    all.push_back(w);
  }
  return all;
}

[[noreturn]] void fail_read_back(const fs::path& file, const std::string& what) {
  fail_file("{}: reading back what was written: {}. The disk or the memory is faulty; nothing was replaced.",
            file.string(), what);
}

/// visit(elements before it in the box, elements before it in the tensor, elements) for pieces of the box that are
/// adjacent in the tensor.
template <class Visit>
void for_each_piece(const Region& box, const Shape& tensor, const Visit& visit) {
  for_each_run(box, Region::whole(tensor), [&](int64_t from, int64_t to, int64_t elements) {
    for (int64_t i = 0; i < elements; i += kPieceElements) {
      visit(from + i, to + i, std::min(kPieceElements, elements - i));
    }
  });
}

}  // namespace

HfWeights::HfWeights(const ParameterTable& table, DType dtype, uint64_t limit) : table_(table), dtype_(dtype) {
  uint64_t filled = 0;
  for (size_t r = 0; r < table.size(); ++r) {
    for (const ParameterPart& part : table[r].parts) {
      const Shape shape = shape_of(table[r], part);
      const uint64_t bytes = static_cast<uint64_t>(shape.elements()) * size_of(dtype);
      if (shards_.empty() || (filled > 0 && filled + bytes > limit)) {
        shards_.emplace_back();
        filled = 0;
      }
      filled += bytes;
      shards_.back().tensors.push_back({r, &part, shape, 0});
    }
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    HfShard& shard = shards_[i];
    shard.file = shards_.size() == 1 ? "model.safetensors"
                                     : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
    std::vector<SafetensorsItem> items;
    for (const HfTensor& tensor : shard.tensors) items.push_back({tensor.part->name, dtype, dims_of(tensor.shape)});
    shard.plan = plan_safetensors(items, {{"format", "pt"}});
    for (size_t t = 0; t < items.size(); ++t) shard.tensors[t].position = shard.plan.positions[t];
  }
}

uint64_t HfWeights::bytes() const {
  uint64_t total = 0;
  for (const HfShard& shard : shards_) total += shard.plan.file_bytes - shard.plan.header.size();
  return total;
}

std::string HfWeights::index() const {
  if (shards_.size() == 1) return "";
  json map = json::object();
  for (const HfShard& shard : shards_) {
    for (const HfTensor& tensor : shard.tensors) map[tensor.part->name] = shard.file;
  }
  return json{{"metadata", {{"total_size", bytes()}}}, {"weight_map", map}}.dump(2) + "\n";
}

void HfWeights::create(const fs::path& folder) const {
  for (const HfShard& shard : shards_) {
    RegionFile::create(folder / shard.file, shard.plan.file_bytes);
    const RegionFile file(folder / shard.file);
    file.write(0, shard.plan.header.data(), shard.plan.header.size());
    file.sync();
  }
}

std::string HfWeights::write(const fs::path& folder, const std::vector<WeightPiece>& pieces) const {
  std::vector<std::vector<std::pair<size_t, size_t>>> places(table_.size());  // [row]: shards and tensors in them
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (size_t t = 0; t < shards_[s].tensors.size(); ++t) places[shards_[s].tensors[t].row].push_back({s, t});
  }
  std::map<size_t, RegionFile> files;
  std::vector<char> buffer(static_cast<size_t>(kPieceElements) * size_of(dtype_));
  json written = json::array();
  for (const WeightPiece& piece : pieces) {
    const TensorView view = piece.view();
    YOKE_ASSERT(view.data != nullptr && view.shape == piece.region.shape && is_float(view.dtype) && view.contiguous() &&
                    inside(piece.region, table_[piece.row].shape),
                "{} is {}", table_[piece.row].name, view.str());
    for (const auto& [s, t] : places[piece.row]) {
      const HfTensor& tensor = shards_[s].tensors[t];
      auto box = intersection(piece.region, {{tensor.part->row}, tensor.shape});
      if (!box) continue;
      const char* from =
          view.as<const char>() + index_in(piece.region, box->offset) * static_cast<int64_t>(size_of(view.dtype));
      box->offset[0] -= tensor.part->row;
      const RegionFile& file = files.try_emplace(s, folder / shards_[s].file).first->second;
      Hasher hasher;
      for_each_piece(*box, tensor.shape, [&](int64_t source, int64_t target, int64_t elements) {
        const auto bytes = static_cast<size_t>(elements) * size_of(dtype_);
        convert_elements(from + source * static_cast<int64_t>(size_of(view.dtype)), view.dtype, buffer.data(), dtype_,
                         elements);
        hasher.update(buffer.data(), bytes);
        file.write(tensor.position + static_cast<uint64_t>(target) * size_of(dtype_), buffer.data(), bytes);
      });
      written.push_back(to_json({s, t, *box, hasher.hex()}));
    }
  }
  for (const auto& [shard, file] : files) file.sync();
  return written.dump();
}

void HfWeights::check_written(const std::vector<std::string>& written) const {
  std::map<std::pair<size_t, size_t>, std::vector<Region>> boxes;
  for (const std::string& text : written) {
    for (const Written& w : from_text(text)) boxes[{w.shard, w.tensor}].push_back(w.region);
  }
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (size_t t = 0; t < shards_[s].tensors.size(); ++t) {
      const HfTensor& tensor = shards_[s].tensors[t];
      const std::string fault = cover_fault(tensor.shape, std::move(boxes[{s, t}]));
      YOKE_ASSERT(fault.empty(), "pieces of {}: {}", tensor.part->name, fault);
    }
  }
}

void HfWeights::check_headers(const fs::path& folder) const {
  for (const HfShard& shard : shards_) {
    const SafetensorsFile file(folder / shard.file);
    if (file.tensors().size() != shard.tensors.size()) {
      fail_read_back(file.path(), fmt::format("{} tensors instead of {}", file.tensors().size(), shard.tensors.size()));
    }
    for (const HfTensor& want : shard.tensors) {
      const StoredTensor* tensor = file.find(want.part->name);
      if (tensor == nullptr) fail_read_back(file.path(), want.part->name + " is missing");
      if (tensor->shape != dims_of(want.shape) || tensor->type->dtype != dtype_) {
        fail_read_back(file.path(), fmt::format("{} is {}", want.part->name, tensor->str()));
      }
    }
  }
}

void HfWeights::check_bytes(const fs::path& folder, const std::string& written) const {
  std::map<size_t, RegionFile> files;
  std::vector<char> buffer(static_cast<size_t>(kPieceElements) * size_of(dtype_));
  for (const Written& w : from_text(written)) {
    const HfTensor& tensor = shards_[w.shard].tensors[w.tensor];
    const fs::path path = folder / shards_[w.shard].file;
    const RegionFile& file = files.try_emplace(w.shard, path).first->second;
    Hasher hasher;
    for_each_piece(w.region, tensor.shape, [&](int64_t, int64_t from, int64_t elements) {
      const auto bytes = static_cast<size_t>(elements) * size_of(dtype_);
      file.read(tensor.position + static_cast<uint64_t>(from) * size_of(dtype_), buffer.data(), bytes);
      hasher.update(buffer.data(), bytes);
    });
    if (hasher.hex() != w.hash) fail_read_back(path, tensor.part->name + " has other bytes");
  }
}

}  // namespace yoke
