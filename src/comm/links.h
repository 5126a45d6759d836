// How long messages take: links between ranks, and the dry device's ranks with them.
#pragma once

#include <vector>

#include "comm/parallel.h"

namespace yoke {

/// One way, of one rank.
struct Link {
  double bytes_per_second = 0;  ///< 0: unknown; messages then take no time
  double latency = 0;           ///< seconds of each message
  bool operator==(const Link&) const = default;
};

struct LinkRates {
  Link node;           ///< to ranks of the same node
  Link network;        ///< to others
  int node_ranks = 0;  ///< of a node: ranks 0 to node_ranks - 1 share one, and so on; 0: all ranks do

  /// Whether some of these ranks, in order, are on different nodes.
  bool crosses(const std::vector<int>& ranks) const {
    return node_ranks > 0 && ranks.front() / node_ranks != ranks.back() / node_ranks;
  }
  const Link& of(const std::vector<int>& ranks) const { return crosses(ranks) ? network : node; }
};

/// Seconds of a message of so many bytes.
double message_seconds(double bytes, const Link& link);

/// Seconds of a collective in a ring of `ranks` ranks whose slowest link is `link`: of an all-reduce
/// 2 (n - 1) latency + 2 (n - 1)/n S / rate, of a reduce-scatter or an all-gather half of that.
double ring_seconds(const Collective& collective, int ranks, const Link& link);

/// Parallel::dry() with collectives that take as long as ring_seconds() says and run beside the computation, one after
/// the other in each group and direction. Messages of a pipeline take none: when they can be sent depends on other
/// ranks, see pipeline_timeline().
Parallel dry_parallel(const MeshSizes& sizes, int rank, const LinkRates& links);

}  // namespace yoke
