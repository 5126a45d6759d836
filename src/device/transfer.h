// Copies between host memory and tensors, in stream order. The only way to touch tensor memory outside an operation.
#pragma once

#include <span>
#include <vector>

#include "device/context.h"

namespace yoke {

/// `source` holds exactly the bytes of the contiguous `destination` and may be reused when this returns.
void upload(Context& ctx, const void* source, size_t bytes, const TensorView& destination);
/// Waits for the stream. On the dry device `destination` is filled with zeros, or left out (null).
void download(Context& ctx, const TensorView& source, void* destination, size_t bytes);

/// Copies a contiguous tensor to another of as many bytes, on the device.
void copy(Context& ctx, const TensorView& source, const TensorView& destination);

/// On the dry device `source` may be empty: a plan needs no data.
template <class T>
void upload(Context& ctx, std::span<const T> source, const TensorView& destination) {
  const bool no_data = ctx.device.is_dry() && source.empty();
  upload(ctx, source.data(), no_data ? destination.bytes() : source.size_bytes(), destination);
}
template <class T>
void download(Context& ctx, const TensorView& source, std::span<T> destination) {
  download(ctx, source, destination.data(), destination.size_bytes());
}

/// All of a contiguous tensor, after waiting for the stream. Empty on the dry device.
template <class T>
std::vector<T> downloaded(Context& ctx, const TensorView& source) {
  std::vector<T> values(ctx.device.is_dry() ? 0 : static_cast<size_t>(source.elements()));
  YOKE_ASSERT(sizeof(T) == size_of(source.dtype));
  download(ctx, source, values.data(), source.bytes());
  return values;
}

/// Lets `write` fill a tensor through host memory: write(TensorView of host memory with the tensor's type and shape).
/// Not called on the dry device.
template <class Write>
void write_through_host(Context& ctx, const TensorView& tensor, const Write& write) {
  if (!ctx.device.is_dry()) write(tensor);
}

/// Lets `read` look at a tensor as host memory, after waiting for the stream.
template <class Read>
void read_through_host(Context& ctx, const TensorView& tensor, const Read& read) {
  ctx.stream.synchronize();
  if (!ctx.device.is_dry()) read(tensor);
}

}  // namespace yoke
