#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"

namespace yoke {

namespace {

/// The length and the header, padded with spaces so that the data begins at a multiple of 8; adds the data's bytes.
std::string make_header(const std::vector<SafetensorsWriter::Item>& tensors, const StoredMetadata& metadata,
                        uint64_t* file_bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t position = 0;
  for (const auto& [name, dtype, shape] : tensors) {
    YOKE_ASSERT(!header.contains(name), "tensor {} twice", name);
    int64_t bytes = static_cast<int64_t>(size_of(dtype));
    for (const int64_t dim : shape) bytes = checked_product(bytes, dim, name.c_str());
    header[name] = {
        {"dtype", stored_type(dtype).name}, {"shape", shape}, {"data_offsets", {position, position + bytes}}};
    position += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  *file_bytes = sizeof length + length + static_cast<uint64_t>(position);
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<Item>& tensors,
                                     const StoredMetadata& metadata)
    : file_(path) {
  const std::string header = make_header(tensors, metadata, &file_bytes_);
  write(header.data(), header.size());
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
