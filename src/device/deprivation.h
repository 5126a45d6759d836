// What kept this process from its processor. A header of its own: few ask, and many know devices.
#pragma once

#include <string>

namespace yoke {

/// What this process had to do without so far.
struct Deprivation {
  double queued = 0;     ///< seconds that its threads were ready and had no core, each counted; those that live
  double throttled = 0;  ///< seconds that the processor quota of its cgroup stopped it
  double faults = 0;     ///< pages that had to be read from disk
};
/// Zero where the system doesn't say. `root` stands for the file system's, as for available_memory().
Deprivation deprivation(const std::string& root = "");

}  // namespace yoke
