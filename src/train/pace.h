// How fast the ranks of a run work: who is slow, what that costs, and why.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "device/deprivation.h"
#include "monitor/report.h"
#include "train/team.h"

namespace yoke {

/// What a rank did in some steps; sums, in seconds.
struct RankPace {
  double steps = 0;      ///< a number
  double seconds = 0;    ///< reading samples, and in steps
  double waited = 0;     ///< of them, for other ranks
  double reading = 0;    ///< of them, for samples
  double computed = 0;   ///< of the processor, by the thread that calls operations
  double queued = 0;     ///< that its threads were ready and had no core, each counted
  double throttled = 0;  ///< that the quota of its cgroup kept it from its cores
  double faults = 0;     ///< pages read back from disk; a number

  double busy() const { return seconds - waited; }
};

/// Ranks of the same pipeline stage do equal work, so who is busy longer than the middle of them is slow, and the
/// others wait for it as long. A rank without its like is compared with `best`, busy seconds a step that it has done
/// with (0: unknown). Named from this share of the time on.
inline constexpr double kSlowShare = 0.1;
std::vector<SlowRank> slow_ranks(const std::vector<RankPace>& paces, const std::vector<double>& best,
                                 const RankNames& names, const MeshSizes& sizes);

/// One rank's view of its steps, shared at logged ones.
class Pace {
 public:
  /// Alone it does nothing.
  Pace(Team& team, const MeshSizes& sizes);

  /// Around the reading of a step's samples and the step. `read`: between the two. What comes between steps doesn't
  /// count: rank 0 writes logs and checkpoints then.
  void begin();
  void read();
  void end();

  /// Every rank calls it, at the same steps. Rank 0 gets the ranks that were slow since it last told, once that is long
  /// enough to tell, and warns of them: at first and whenever what one of them costs has doubled.
  std::vector<SlowRank> share();
  /// Rank 0 says what slow ranks cost in all, if any were.
  void say_total() const;

 private:
  struct Clocks {
    std::chrono::steady_clock::time_point now;
    double waited = 0, computed = 0;
  };
  struct Cost {
    double lost = 0, warned_at = 0;
    std::string cause;
  };
  Clocks clocks() const;
  std::vector<SlowRank> judge();

  Team& team_;
  MeshSizes sizes_;
  Clocks begin_;
  std::chrono::steady_clock::time_point read_;
  RankPace mine_;        // since share()
  Deprivation without_;  // at share()
  // Of rank 0, by rank.
  std::vector<RankPace> all_;
  std::vector<double> best_;
  std::vector<Cost> costs_;
  double seconds_ = 0;  // of all that was judged
};

}  // namespace yoke
