// What a job says on standard error, on its way to this process's.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace yoke {

/// A rank that a signal ended.
struct KilledRank {
  int rank = 0;
  std::string host;
  std::string signal;  ///< "9 (Killed)"
  bool operator==(const KilledRank&) const = default;
};

/// Hands on lines, without what mpirun says of a job's end: that is told from it in yoke's words.
class JobOutput {
 public:
  explicit JobOutput(int to) : to_(to) {}
  void add(std::string_view text);
  /// The rest, when nothing comes any more.
  void finish();

  const std::optional<KilledRank>& killed() const { return killed_; }
  /// A rank has said why it ends ("yoke: ..."), or was killed: the job is about to end.
  bool is_ending() const { return fault_said_ || killed_; }
  bool fault_said() const { return fault_said_; }
  /// mpirun could not start anything on some host.
  bool unreachable() const { return unreachable_; }
  /// mpirun lost its way to some host.
  bool cut_off() const { return cut_off_; }

 private:
  void line(const std::string& text);
  void end_block();
  void write(const std::string& text);

  int to_;
  std::string partial_;
  std::vector<std::string> block_;  // between two of mpirun's rulers
  bool in_block_ = false;
  bool fault_said_ = false;
  bool unreachable_ = false, cut_off_ = false;
  std::optional<KilledRank> killed_;
};

}  // namespace yoke
