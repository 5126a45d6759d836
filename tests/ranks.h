// Tests that run on several ranks: every rank runs the same tests in the same order (tests/ranks_main.cc starts and
// ends MPI), and one that fails on any rank fails.
#pragma once

#include "comm/launch.h"
#include "device/context.h"

namespace yoke::test {

Mpi& mpi();

/// Every mesh of so many ranks: all sizes of the axes, and all sizes of shards.
inline std::vector<MeshSizes> all_meshes(int ranks) {
  std::vector<MeshSizes> meshes;
  for (int d = 1; d <= ranks; ++d) {
    for (int c = 1; d * c <= ranks; ++c) {
      for (int p = 1; d * c * p <= ranks; ++p) {
        if (ranks % (d * c * p) != 0) continue;
        for (int shard = 1; shard <= d * c; ++shard) {
          if ((d * c) % shard == 0) meshes.push_back({d, c, p, ranks / (d * c * p), shard});
        }
      }
    }
  }
  return meshes;
}

/// A processor of one thread.
struct OneThread {
  Device device = Device::cpu(1);
  Stream stream;
  Arena arena;
  Context ctx{device, stream, arena};
};

}  // namespace yoke::test
