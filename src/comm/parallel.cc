#include "comm/parallel.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/links.h"

namespace yoke {

Parallel::Parallel(const Mesh& mesh, Communicators communicators, std::unique_ptr<HostGroup> host)
    : mesh_(mesh), communicators_(std::move(communicators)), host_(std::move(host)) {
  for (const auto& communicator : communicators_) YOKE_ASSERT(communicator != nullptr);
}

Parallel Parallel::self() { return dry({}, 0); }

Parallel Parallel::dry(const MeshSizes& sizes, int rank) { return dry_parallel(sizes, rank, {}); }

}  // namespace yoke
