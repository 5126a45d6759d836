// The log of one rank among several: one log for all of them.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/parallel.h"

namespace yoke {

class RankNames;

/// While it lives, rank 0 logs as ever. Other ranks log nothing of their own: their warnings and errors wait for
/// share(), in which rank 0 writes them, each with its ranks unless rank 0 said the same. What a rank still holds when
/// it ends by itself it writes with its tag.
class RankLog {
 public:
  /// `tag`: "rank 3 (node1)".
  RankLog(int rank, std::string tag);
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;
  ~RankLog();

  /// "rank 3 (node1, data 1, tensor 0)", once the mesh is known.
  void set_tag(std::string tag);
  std::string tag() const;
  /// Every rank calls it at the same place.
  void share(HostGroup& host, const RankNames& names);

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
  int rank_ = 0;
};

}  // namespace yoke
