#include "comm/parallel.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace yoke {

namespace {

class AloneOnHost : public HostGroup {
 public:
  std::vector<std::string> all_gather(const std::string& text) override { return {text}; }
  void all_reduce(std::span<double>, Reduction) override {}
  std::string broadcast(const std::string& text) override { return text; }
  void barrier() override {}
};

/// Adds up traffic. A collective takes no time: the rates of links are not known here.
class DryCommunicator : public Communicator {
 public:
  using Communicator::Communicator;

 protected:
  Pending start_shared(Context& ctx, const Collective&) override { return {++sequence_, ctx.stream.clock()}; }
  void wait_shared(Context&, const Pending&) override {}

 private:
  uint64_t sequence_ = 0;
};

}  // namespace

Parallel::Parallel(const Mesh& mesh, Communicators communicators, std::unique_ptr<HostGroup> host)
    : mesh_(mesh), communicators_(std::move(communicators)), host_(std::move(host)) {
  for (const auto& communicator : communicators_) YOKE_ASSERT(communicator != nullptr);
}

Parallel Parallel::self() { return dry({}, 0); }

Parallel Parallel::dry(const MeshSizes& sizes, int rank) {
  const Mesh mesh(sizes, rank);
  Communicators communicators;
  for (size_t g = 0; g < kGroups; ++g) {
    const auto group = static_cast<Group>(g);
    const std::vector<int> members = mesh.members(group);
    const auto at = std::find(members.begin(), members.end(), rank);
    communicators[g] = std::make_unique<DryCommunicator>(group, static_cast<int>(at - members.begin()),
                                                         static_cast<int>(members.size()));
  }
  return {mesh, std::move(communicators), std::make_unique<AloneOnHost>()};
}

}  // namespace yoke
