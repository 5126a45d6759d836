#include "model/store.h"

namespace yoke {

ParameterBuffers::ParameterBuffers(Arena& arena, const char* name, const ParameterTable& table, DType dtype,
                                   MemoryKind kind) {
  views_.reserve(table.size());
  for (const ParameterRow& row : table.rows()) views_.push_back(arena.allocate(name, dtype, row.shape, kind));
}

void GradientStore::begin_step(Context&, int64_t) { written_.assign(written_.size(), false); }

GradientStore::Slot GradientStore::get(size_t row) {
  const bool accumulate = written_[row];
  written_[row] = true;
  return {gradients_[row], accumulate};
}

void GradientStore::notify(size_t row) {
  if (consumer_) consumer_(row);
}

}  // namespace yoke
