// A rank's place among the others and its ways to talk to them.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace yoke {

/// What ranks tell each other on the host, at start and once a step. Blocking; every rank of the world takes part.
class HostGroup {
 public:
  virtual ~HostGroup() = default;
  /// Everybody's text, by rank.
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;
  /// In place.
  virtual void all_reduce(std::span<double> values, Reduction reduction) = 0;
  /// Rank 0's text.
  virtual std::string broadcast(const std::string& text) = 0;
  virtual void barrier() = 0;
};

/// The communicators of one rank, one a group, and the host's. Groups of one rank have a communicator, too.
class Parallel {
 public:
  using Communicators = std::array<std::unique_ptr<Communicator>, kGroups>;
  Parallel(const Mesh& mesh, Communicators communicators, std::unique_ptr<HostGroup> host);
  Parallel(Parallel&&) = default;

  /// One rank without others.
  static Parallel self();
  /// Rank `rank` of a mesh whose collectives only add up traffic, on the dry device.
  static Parallel dry(const MeshSizes& sizes, int rank);

  const Mesh& mesh() const { return mesh_; }
  Communicator& operator[](Group group) const { return *communicators_[static_cast<size_t>(group)]; }
  HostGroup& host() const { return *host_; }
  bool first() const { return mesh_.rank() == 0; }

 private:
  Mesh mesh_;
  Communicators communicators_;
  std::unique_ptr<HostGroup> host_;
};

}  // namespace yoke
