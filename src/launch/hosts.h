// Hosts that ranks are started on, and how many on each.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace yoke {

struct HostSlots {
  std::string host;
  int ranks = 1;
  bool operator==(const HostSlots&) const = default;
};

/// "a:4,b": four ranks on a, one on b. UserError (usage) where it isn't such a list.
std::vector<HostSlots> parse_hosts(const std::string& text);

/// A hostfile as Open MPI and the Kubernetes MPI operator write it: a line a host, "a slots=4" or "a:4"; # begins a
/// comment. UserError (usage) that names file and line where it isn't one.
std::vector<HostSlots> read_hostfile(const std::filesystem::path& file);

int ranks_of(const std::vector<HostSlots>& hosts);

}  // namespace yoke
