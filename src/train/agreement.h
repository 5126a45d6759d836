// What ranks make sure of before they train together: the same program, recipe and data, clocks and folders they share.
// Every fault is one message that names the ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/parallel.h"

namespace yoke {

/// A UserError that every rank throws with the same words, so that one of them says it.
class SharedError : public UserError {
 public:
  using UserError::UserError;
};

/// How messages name ranks.
class RankNames {
 public:
  /// `hosts`: by rank.
  explicit RankNames(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}
  /// "rank 3 (node1)", "ranks 0, 1 (node1), 2 to 5 (node2)": ascending.
  std::string text(const std::vector<int>& ranks) const;
  int ranks() const { return static_cast<int>(hosts_.size()); }
  const std::string& host(int rank) const { return hosts_[static_cast<size_t>(rank)]; }

 private:
  std::vector<std::string> hosts_;
};

/// Does the same work on every rank. Where it was a UserError on some, all throw one SharedError with the first rank's
/// exit code; equal messages are said once, others with their ranks.
void together(HostGroup& host, const RankNames& names, const std::function<void()>& work);

/// What a rank brings along.
struct RankFacts {
  std::string version;  ///< of yoke
  std::string recipe;   ///< resolved_yaml()
  double clock = 0;     ///< seconds since 1970, taken at the same moment by all
};

/// Clocks further apart than this are named in a warning: files' ages and log lines of different hosts mislead.
inline constexpr double kClockWarning = 5;
/// ... and than this refused: so wrong a clock has no synchronisation at all.
inline constexpr double kClockLimit = 300;

/// SharedError (usage) where versions or recipes differ or clocks are too far apart. The warning about clocks that are
/// apart a little, or "". `facts`: by rank.
std::string compare_facts(const std::vector<RankFacts>& facts, const RankNames& names);

/// Gathers and compares, with clocks read behind a barrier.
std::string agree_on_start(HostGroup& host, const RankNames& names, const std::string& version,
                           const std::string& recipe);

/// Equal values on all ranks, of something that `what` names ("the data set", ...). SharedError with `code` naming the
/// ranks of each value, and ending in `advice`.
void agree_on(HostGroup& host, const RankNames& names, const std::string& what, const std::string& value, ExitCode code,
              const std::string& advice);

/// Each rank's hash of the samples it reads first, "" where it has none left; a rank of the same data rank reads the
/// same. What to log. SharedError (bad_file) where data ranks read the same samples, or ranks of one data rank don't.
std::string agree_on_samples(HostGroup& host, const RankNames& names, const MeshSizes& sizes, const std::string& hash);

/// Rank 0 writes a file into `folder`, which it makes; all others must see it. SharedError (bad_file) naming those that
/// don't within `patience` seconds: network file systems take a while.
void agree_on_folder(HostGroup& host, const RankNames& names, int rank, const std::filesystem::path& folder,
                     double patience = 10);

/// "avx512 on rank 0 (a); avx2 on rank 1 (b)", or "" where all ranks have the same.
std::string differing(HostGroup& host, const RankNames& names, const std::string& value);

/// Everybody's number, by rank; null: this rank is alone.
std::vector<size_t> bytes_by_rank(HostGroup* host, size_t mine);

/// Processor threads for this rank: the cores it may use, shared evenly by the ranks of its host that may use them too;
/// at least 1. With `bind` the process is bound to its share where the host has a core for each rank. `cores`:
/// usable_cores().
int share_cores(HostGroup& host, const RankNames& names, int rank, int cores, bool bind = true);

}  // namespace yoke
