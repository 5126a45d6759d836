// Groups of every mesh up to 24 ranks against closed forms; slow ranks.
#include "comm/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/parallel.h"
#include "tests/ranks.h"

namespace yoke {
namespace {

int size_of_group(const MeshSizes& s, const MeshPlace& p, Group group) {
  switch (group) {
    case Group::world:
      return s.ranks();
    case Group::data:
      return s.data;
    case Group::context:
      return s.context;
    case Group::pipeline:
      return s.pipeline;
    case Group::tensor:
      return s.tensor;
    case Group::replicas:
      return s.data * s.context;
    case Group::shard:
      return s.shards();
    case Group::replicate:
      return s.data * s.context / s.shards();
    case Group::ends:
      return s.pipeline > 1 && (p.pipeline == 0 || p.pipeline == s.pipeline - 1) ? 2 : 1;
  }
  return 0;
}

TEST(Mesh, GroupsHaveTheirSizesAndArePartitions) {
  for (int n = 1; n <= 24; ++n) {
    for (const MeshSizes& sizes : test::all_meshes(n)) {
      for (int rank = 0; rank < n; ++rank) {
        const Mesh mesh(sizes, rank);
        ASSERT_EQ(mesh.rank_of(mesh.place()), rank);
        for (size_t g = 0; g < kGroups; ++g) {
          const auto group = static_cast<Group>(g);
          const auto members = mesh.members(group);
          ASSERT_EQ(static_cast<int>(members.size()), size_of_group(sizes, mesh.place(), group)) << name_of(group);
          ASSERT_TRUE(std::is_sorted(members.begin(), members.end()));
          ASSERT_TRUE(std::find(members.begin(), members.end(), rank) != members.end());
          for (int other : members) ASSERT_EQ(Mesh(sizes, other).members(group), members);
        }
      }
    }
  }
}

// Rank = ((pipeline * data + d) * context + c) * tensor + t, so that members are this far apart.
TEST(Mesh, MembersAreStrides) {
  const MeshSizes sizes{.data = 2, .context = 3, .pipeline = 2, .tensor = 2, .shard = 3};
  const Mesh mesh(sizes, 17);  // pipeline 1, data 0, context 2, tensor 1
  EXPECT_EQ(mesh.place(), (MeshPlace{.data = 0, .context = 2, .pipeline = 1, .tensor = 1}));
  EXPECT_EQ(mesh.members(Group::tensor), (std::vector<int>{16, 17}));
  EXPECT_EQ(mesh.members(Group::context), (std::vector<int>{13, 15, 17}));
  EXPECT_EQ(mesh.members(Group::data), (std::vector<int>{17, 23}));
  EXPECT_EQ(mesh.members(Group::pipeline), (std::vector<int>{5, 17}));
  EXPECT_EQ(mesh.members(Group::replicas), (std::vector<int>{13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(mesh.members(Group::shard), (std::vector<int>{13, 15, 17}));
  EXPECT_EQ(mesh.members(Group::replicate), (std::vector<int>{17, 23}));
  EXPECT_EQ(mesh.members(Group::ends), (std::vector<int>{5, 17}));
  EXPECT_EQ(mesh.place_text(), "data 0, context 2, pipeline 1, tensor 1");
}

}  // namespace
}  // namespace yoke
