#include "comm/parallel.h"

#include <algorithm>
#include <cstring>
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

std::vector<double> waited_by_rank(const Parallel& parallel) {
  double waited = 0;
  for (size_t g = 0; g < kGroups; ++g) waited += parallel[static_cast<Group>(g)].traffic().waited;
  std::string bytes(sizeof waited, '\0');
  std::memcpy(bytes.data(), &waited, sizeof waited);
  std::vector<double> all;
  for (const std::string& text : parallel.host().all_gather(bytes)) {
    YOKE_ASSERT(text.size() == sizeof waited);
    std::memcpy(&all.emplace_back(), text.data(), sizeof waited);
  }
  return all;
}

std::optional<SlowRank> slow_rank(const std::vector<double>& waited, double seconds, double share) {
  if (waited.size() < 2) return {};
  const auto least = std::min_element(waited.begin(), waited.end());
  std::vector<double> others = waited;
  others.erase(others.begin() + (least - waited.begin()));
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  const SlowRank slow{static_cast<int>(least - waited.begin()), *middle - *least};
  if (slow.lost <= share * seconds) return {};
  return slow;
}

}  // namespace yoke
