#include "comm/mesh.h"

#include "base/error.h"

namespace yoke {

Mesh::Mesh(const MeshSizes& sizes, int rank) : sizes_(sizes), rank_(rank), place_(place_of(rank)) {
  YOKE_ASSERT(sizes.data > 0 && sizes.context > 0 && sizes.pipeline > 0 && sizes.tensor > 0);
  YOKE_ASSERT(sizes.replicas() % sizes.shards() == 0, "{} replicas in shards of {}", sizes.replicas(), sizes.shards());
  YOKE_ASSERT(rank >= 0 && rank < sizes.ranks(), "rank {} of {}", rank, sizes.ranks());
}

MeshPlace Mesh::place_of(int rank) const {
  MeshPlace place;
  place.tensor = rank % sizes_.tensor;
  rank /= sizes_.tensor;
  place.context = rank % sizes_.context;
  rank /= sizes_.context;
  place.data = rank % sizes_.data;
  place.pipeline = rank / sizes_.data;
  return place;
}

int Mesh::rank_of(const MeshPlace& p) const {
  return ((p.pipeline * sizes_.data + p.data) * sizes_.context + p.context) * sizes_.tensor + p.tensor;
}

std::vector<int> Mesh::members(Group group) const {
  const int shards = sizes_.shards(), last = sizes_.pipeline - 1, replica = place_.replica(sizes_);
  const auto same_but = [&](const MeshPlace& p, Group free) {
    const bool replicas = free == Group::replicas || free == Group::shard || free == Group::replicate;
    return (free == Group::tensor || p.tensor == place_.tensor) &&
           (free == Group::context || replicas || p.context == place_.context) &&
           (free == Group::data || replicas || p.data == place_.data) &&
           (free == Group::pipeline || free == Group::ends || p.pipeline == place_.pipeline);
  };
  std::vector<int> ranks;
  for (int r = 0; r < sizes_.ranks(); ++r) {
    const MeshPlace p = place_of(r);
    const int other = p.replica(sizes_);
    const bool is_end = p.pipeline == 0 || p.pipeline == last;
    const bool at_end = place_.pipeline == 0 || place_.pipeline == last;
    bool member = group == Group::world || same_but(p, group);
    if (group == Group::shard) member = member && other / shards == replica / shards;
    if (group == Group::replicate) member = member && other % shards == replica % shards;
    if (group == Group::ends) member = member && (at_end ? is_end : r == rank_);
    if (member) ranks.push_back(r);
  }
  return ranks;
}

std::string Mesh::place_text() const {
  std::string text;
  const auto add = [&](std::string_view axis, int size, int at) {
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis, at);
  };
  add("data", sizes_.data, place_.data);
  add("context", sizes_.context, place_.context);
  add("pipeline", sizes_.pipeline, place_.pipeline);
  add("tensor", sizes_.tensor, place_.tensor);
  return text;
}

}  // namespace yoke
