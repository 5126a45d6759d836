// Who is lost: what ranks tell each other about themselves once a second, and what follows from it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mesh.h"

namespace yoke {

/// The groups of a mesh, and the host's.
inline constexpr size_t kWatchedGroups = kGroups + 1;
inline constexpr size_t kHostGroup = kGroups;
std::string_view watched_name(size_t group);

/// What a rank says of itself. Plain data: it is sent as bytes.
struct Beat {
  struct Progress {
    uint64_t mesh = 0;     ///< number of the mesh that the group belongs to; meshes may be made one after another
    uint64_t entered = 0;  ///< collectives of the group that the computation asked for, without sends and receives
  };
  std::array<Progress, kWatchedGroups> groups{};
  /// What the computation stands still for; group -1: it doesn't.
  struct Wait {
    int32_t group = -1;
    int32_t kind = 0;    ///< CollectiveKind
    uint64_t order = 0;  ///< of the group's collectives, from 1; nothing for sends and receives
    uint64_t sequence = 0;
    int64_t layer = -1;
    double seconds = 0;
    int32_t peer = -1;  ///< send, receive: rank of the world
    char what[32] = "";
  } wait;
};

struct WatchOptions {
  double silence = 15;   ///< seconds after which a rank that says nothing is lost
  double timeout = 600;  ///< seconds that a rank may wait for another that lives
};

/// Times are seconds of one clock of this process.
class Watch {
 public:
  Watch(const WatchOptions& options, int rank, const std::vector<std::string>& hosts, const std::vector<int>& processes,
        double now);

  /// Groups are those of this mesh from now on; `number`: which one it is of those that were made.
  void set_mesh(const MeshSizes& sizes, uint64_t number);
  void heard(int rank, const Beat& beat, double now);
  /// What is wrong by now, or nothing; `own`: this rank's state. Called often: a gap since the last call means that
  /// this process itself stood still, and then nobody else is to blame for silence. `patient`: ranks do work that may
  /// take any time, so none is stuck.
  std::optional<std::string> verdict(const Beat& own, double now, bool patient = false);

 private:
  std::string name(int rank) const;  ///< "rank 3 (host node7, process 4242)"
  std::string names(const std::vector<int>& ranks) const;
  /// What a rank waits in and for how long.
  std::string wait_of(int rank) const;
  /// "; it last said that it had entered 5 of the 6 collectives ...": of the group that `waiting` waits in.
  std::string last_of(int rank, int waiting) const;
  std::vector<int> members(size_t group, int rank) const;
  /// The rank that `rank` waits for, if one can be named.
  std::optional<int> blocker(int rank) const;
  std::optional<std::string> lost(double now) const;
  std::optional<std::string> stuck() const;

  WatchOptions options_;
  int rank_;
  std::vector<std::string> hosts_;
  std::vector<int> processes_;
  double patient_until_ = 0;  ///< what was last heard of ranks may be that old
  std::vector<double> heard_;
  std::vector<Beat> beats_;
  MeshSizes mesh_;
  uint64_t mesh_number_ = 0;
  double last_look_;
};

}  // namespace yoke
