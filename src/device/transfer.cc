#include "device/transfer.h"

#include <cstring>

namespace yoke {

void upload(Context& ctx, const void* source, size_t bytes, const TensorView& destination) {
  YOKE_ASSERT(destination.contiguous() && destination.bytes() == bytes, "upload of {} bytes to {}", bytes,
              destination.str());
  ctx.stream.account("upload", {.bytes_written = static_cast<double>(bytes)}, 0);
  if (!ctx.device.is_dry()) std::memcpy(destination.data, source, bytes);
}

void download(Context& ctx, const TensorView& source, void* destination, size_t bytes) {
  YOKE_ASSERT(source.contiguous() && source.bytes() == bytes, "download of {} to {} bytes", source.str(), bytes);
  ctx.stream.account("download", {.bytes_read = static_cast<double>(bytes)}, 0);
  ctx.stream.synchronize();
  if (ctx.device.is_dry()) {
    if (destination != nullptr) std::memset(destination, 0, bytes);
  } else {
    std::memcpy(destination, source.data, bytes);
  }
}

void copy(Context& ctx, const TensorView& source, const TensorView& destination) {
  YOKE_ASSERT(source.contiguous() && destination.contiguous() && source.bytes() == destination.bytes(),
              "copy of {} to {}", source.str(), destination.str());
  const auto bytes = static_cast<double>(source.bytes());
  ctx.stream.account("copy", {.bytes_read = bytes, .bytes_written = bytes}, 0);
  if (ctx.device.is_dry()) {
    ctx.stream.advance(ctx.device.rates(), {.bytes_read = bytes, .bytes_written = bytes});
  } else {
    std::memcpy(destination.data, source.data, source.bytes());
  }
}

}  // namespace yoke
