#include "comm/links.h"

#include <algorithm>

namespace yoke {

double message_seconds(double bytes, const Link& link) {
  return link.bytes_per_second > 0 ? link.latency + bytes / link.bytes_per_second : 0;
}

double ring_seconds(const Collective& c, int ranks, const Link& link) {
  if (ranks == 1 || link.bytes_per_second == 0) return 0;
  if (c.kind == CollectiveKind::receive) return message_seconds(static_cast<double>(c.output.bytes()), link);
  const int steps = c.kind == CollectiveKind::send         ? 1
                    : c.kind == CollectiveKind::all_reduce ? 2 * (ranks - 1)
                                                           : ranks - 1;
  return steps * link.latency + ring_bytes(c, ranks) / link.bytes_per_second;
}

namespace {

/// Adds up traffic, and says when a collective is over.
class DryCommunicator : public Communicator {
 public:
  DryCommunicator(Group group, int rank, int size, const Link& link)
      : Communicator(group, rank, size), link_(group == Group::pipeline ? Link{} : link) {}

 protected:
  Pending start_shared(Context& ctx, const Collective& c) override {
    double& free = free_[c.kind == CollectiveKind::receive ? 1 : 0];
    free = std::max(free, ctx.stream.clock()) + ring_seconds(c, size(), link_);
    return {++sequence_, free};
  }
  void wait_shared(Context&, const Pending&) override {}

 private:
  Link link_;
  double free_[2] = {0, 0};  ///< when what was started is over: what this rank sends, what it receives
  uint64_t sequence_ = 0;
};

class AloneOnHost : public HostGroup {
 public:
  std::vector<std::string> all_gather(const std::string& text) override { return {text}; }
  void all_reduce(std::span<double>, Reduction) override {}
  std::string broadcast(const std::string& text) override { return text; }
  void barrier() override {}
};

}  // namespace

Parallel dry_parallel(const MeshSizes& sizes, int rank, const LinkRates& links) {
  const Mesh mesh(sizes, rank);
  Parallel::Communicators communicators;
  for (size_t g = 0; g < kGroups; ++g) {
    const auto group = static_cast<Group>(g);
    const std::vector<int> members = mesh.members(group);
    const auto at = std::find(members.begin(), members.end(), rank);
    communicators[g] = std::make_unique<DryCommunicator>(group, static_cast<int>(at - members.begin()),
                                                         static_cast<int>(members.size()), links.of(members));
  }
  return {mesh, std::move(communicators), std::make_unique<AloneOnHost>()};
}

}  // namespace yoke
