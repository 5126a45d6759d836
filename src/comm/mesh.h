// The mesh of ranks: named axes, and the groups of ranks that talk to each other.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

/// Sizes of the axes; their product is the number of ranks.
struct MeshSizes {
  int data = 1;
  int context = 1;
  int pipeline = 1;
  int tensor = 1;
  /// Hybrid sharding: how many of the data x context ranks a ZeRO shard is spread over; further ranks hold copies of
  /// it. Divides data x context; 0: all of them.
  int shard = 0;

  int ranks() const { return data * context * pipeline * tensor; }
  int replicas() const { return data * context; }
  int shards() const { return shard == 0 ? replicas() : shard; }
  bool operator==(const MeshSizes&) const = default;
};

/// Where a rank stands on each axis.
struct MeshPlace {
  int data = 0;
  int context = 0;
  int pipeline = 0;
  int tensor = 0;
  /// Among the ranks that compute the same parameters on other tokens.
  int replica(const MeshSizes& sizes) const { return data * sizes.context + context; }
  bool operator==(const MeshPlace&) const = default;
};

/// Whom a collective reaches, seen from one rank: the ranks that differ from it in nothing but ...
enum class Group {
  world,      ///< everyone
  data,       ///< their place on the data axis
  context,    ///< ... the context axis
  pipeline,   ///< ... the pipeline axis
  tensor,     ///< ... the tensor axis
  replicas,   ///< data and context: all that hold gradients of the same parameters
  shard,      ///< replicas among which ZeRO splits state; consecutive ones
  replicate,  ///< replicas that hold the same shard
  ends,       ///< first and last pipeline stage, for tied embeddings; a stage between them is alone
};
inline constexpr size_t kGroups = 9;
inline constexpr std::array<std::string_view, kGroups> kGroupNames{
    "world", "data", "context", "pipeline", "tensor", "replicas", "shard", "replicate", "ends"};
inline constexpr std::string_view name_of(Group group) { return kGroupNames[static_cast<size_t>(group)]; }

/// Ranks are numbered with tensor fastest, then context, data and pipeline: what talks most is closest together.
class Mesh {
 public:
  /// `sizes` has been checked; 0 <= rank < sizes.ranks().
  explicit Mesh(const MeshSizes& sizes = {}, int rank = 0);

  const MeshSizes& sizes() const { return sizes_; }
  int rank() const { return rank_; }
  const MeshPlace& place() const { return place_; }

  MeshPlace place_of(int rank) const;
  int rank_of(const MeshPlace& place) const;
  /// World ranks of this rank's group, in order of their place in it. Holds this rank.
  std::vector<int> members(Group group) const;
  /// "data 1, tensor 0": the axes that have more than one rank; "" where none has.
  std::string place_text() const;

 private:
  MeshSizes sizes_;
  int rank_;
  MeshPlace place_;
};

}  // namespace yoke
