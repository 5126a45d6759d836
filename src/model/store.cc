#include "model/store.h"

namespace yoke {

ParameterBuffers::ParameterBuffers(Arena& arena, const char* name, const ParameterTable& table, DType dtype,
                                   MemoryKind kind) {
  views_.reserve(table.size());
  for (const ParameterRow& row : table.rows()) views_.push_back(arena.allocate(name, dtype, row.shape, kind));
}

}  // namespace yoke
