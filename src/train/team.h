// This process among the ranks of its run: MPI from start to end, one log, and errors that end all ranks together.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "comm/launch.h"
#include "train/agreement.h"
#include "train/rank_log.h"

namespace yoke {

class Team {
 public:
  /// Alone where `at` is empty. Blocks until all ranks have started.
  Team(const std::optional<Launched>& at, const MpiOptions& options);

  bool alone() const { return mpi_ == nullptr; }
  int rank() const { return alone() ? 0 : mpi_->rank(); }
  int ranks() const { return alone() ? 1 : mpi_->ranks(); }
  bool first() const { return rank() == 0; }
  const RankNames& names() const { return names_; }
  /// Of all ranks, before there is a mesh and after.
  HostGroup& host() const { return world_.host(); }
  Mpi* mpi() const { return mpi_.get(); }

  /// This rank's communicators; the log's tag names its place from now on.
  Parallel parallel(const MeshSizes& sizes);
  /// Warnings of other ranks reach the log. Every rank calls it at the same place.
  void share_log();

  /// Runs `work` and ends MPI. The exit code of the process. A SharedError is said by rank 0 alone; all return its
  /// code. Any other error of one rank is said by it, with its tag, and ends all ranks.
  int run(const std::function<int()>& work);

 private:
  [[noreturn]] void leave(ExitCode code, const std::string& message);

  std::unique_ptr<Mpi> mpi_;
  RankNames names_;
  Parallel world_;
  std::optional<RankLog> log_;
};

}  // namespace yoke
