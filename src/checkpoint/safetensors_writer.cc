#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"

namespace yoke {

SafetensorsPlan plan_safetensors(const std::vector<SafetensorsItem>& tensors, const StoredMetadata& metadata) {
  SafetensorsPlan plan;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t position = 0;
  for (const auto& [name, dtype, shape] : tensors) {
    YOKE_ASSERT(!header.contains(name), "tensor {} twice", name);
    int64_t bytes = static_cast<int64_t>(size_of(dtype));
    for (const int64_t dim : shape) bytes = checked_product(bytes, dim, name.c_str());
    header[name] = {
        {"dtype", stored_type(dtype).name}, {"shape", shape}, {"data_offsets", {position, position + bytes}}};
    plan.positions.push_back(static_cast<uint64_t>(position));
    position += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  plan.header = std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
  for (uint64_t& begin : plan.positions) begin += plan.header.size();
  plan.file_bytes = plan.header.size() + static_cast<uint64_t>(position);
  return plan;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<Item>& tensors,
                                     const StoredMetadata& metadata)
    : file_(path) {
  const SafetensorsPlan plan = plan_safetensors(tensors, metadata);
  file_bytes_ = plan.file_bytes;
  write(plan.header.data(), plan.header.size());
}

void SafetensorsWriter::write(const void* data, size_t bytes) {
  YOKE_ASSERT(file_.position() + bytes <= file_bytes_, "more bytes than the header has room for");
  hasher_.update(data, bytes);
  file_.write(data, bytes);
}

std::string SafetensorsWriter::commit() {
  YOKE_ASSERT(file_.position() == file_bytes_, "{} of {} bytes written", file_.position(), file_bytes_);
  file_.commit();
  return hasher_.hex();
}

}  // namespace yoke
