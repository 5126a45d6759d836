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

}  // namespace yoke
