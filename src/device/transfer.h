// Copies between host memory and tensors, in stream order. The only way to touch tensor memory outside an operation.
#pragma once

#include <span>

#include "device/context.h"

namespace yoke {

/// `source` holds exactly the bytes of the contiguous `destination` and may be reused when this returns.
void upload(Context& ctx, const void* source, size_t bytes, const TensorView& destination);
/// Waits for the stream. On the dry device `destination` is filled with zeros.
void download(Context& ctx, const TensorView& source, void* destination, size_t bytes);

template <class T>
void upload(Context& ctx, std::span<const T> source, const TensorView& destination) {
  upload(ctx, source.data(), source.size_bytes(), destination);
}
template <class T>
void download(Context& ctx, const TensorView& source, std::span<T> destination) {
  download(ctx, source, destination.data(), destination.size_bytes());
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
