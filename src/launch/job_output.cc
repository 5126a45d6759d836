#include "launch/job_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>

namespace yoke {

namespace {

constexpr size_t kLongestBlock = 40;  // lines
const std::string kRuler(74, '-');

bool begins_with(const std::vector<std::string>& block, std::initializer_list<std::string_view> words) {
  for (const std::string& line : block) {
    if (line.empty()) continue;
    return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return line.starts_with(word); });
  }
  return false;
}

/// Of a block that says only that, and how, a job ended.
bool tells_of_end(const std::vector<std::string>& block) {
  return begins_with(block, {"mpirun noticed that process rank ", "Primary job ", "MPI_ABORT was invoked on rank ",
                             "mpirun detected that one or more processes exited with"});
}

/// "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed)."
std::optional<KilledRank> killed_in(const std::vector<std::string>& block) {
  std::string all;
  for (const std::string& line : block) all += line + " ";
  const auto after = [&](std::string_view words) {
    const size_t at = all.find(words);
    return at == std::string::npos ? std::string() : all.substr(at + words.size());
  };
  const std::string rank = after("process rank "), node = after(" on node "), signal = after(" exited on signal ");
  if (rank.empty() || node.empty() || signal.empty()) return {};
  return KilledRank{std::atoi(rank.c_str()), node.substr(0, node.find(' ')),
                    signal.substr(0, signal.find_first_of(".\n"))};
}

}  // namespace

void JobOutput::add(std::string_view text) {
  for (;;) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    partial_ += text.substr(0, end);
    text.remove_prefix(end + 1);
    line(partial_);
    partial_.clear();
  }
  partial_ += text;
}

void JobOutput::finish() {
  if (in_block_) end_block();
  if (!partial_.empty()) write(partial_);
  partial_.clear();
}

void JobOutput::line(const std::string& text) {
  if (text == kRuler) {
    if (in_block_) return end_block();
    in_block_ = true;
    return;
  }
  if (in_block_) {
    block_.push_back(text);
    if (block_.size() > kLongestBlock) end_block();
    return;
  }
  if (text.starts_with("yoke: ")) fault_said_ = true;
  write(text + "\n");
}

void JobOutput::end_block() {
  in_block_ = false;
  if (!killed_) killed_ = killed_in(block_);
  const bool unreachable = begins_with(block_, {"ORTE was unable to reliably start one or more daemons"});
  const bool cut_off = begins_with(block_, {"ORTE has lost communication", "ORTE does not know how to route"});
  const bool drop = unreachable || cut_off || tells_of_end(block_);
  unreachable_ = unreachable_ || unreachable;
  cut_off_ = cut_off_ || cut_off;
  for (const std::string& line : block_) {
    if (line.starts_with("yoke: ")) fault_said_ = true;
    if (!drop || line.starts_with("yoke: ")) write(line + "\n");
  }
  block_.clear();
}

void JobOutput::write(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(to_, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) at += static_cast<size_t>(n);
  }
}

}  // namespace yoke
