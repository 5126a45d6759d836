#include "comm/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "comm/recorder.h"

namespace yoke {

namespace {

constexpr size_t kNamed = 4;          // ranks in a message at most
constexpr double kStoodStill = 2;     // seconds between two looks
constexpr double kOldNews = 5;        // seconds that what was heard may be old
constexpr double kBarelyWaiting = 1;  // seconds below which a rank counts as working

}  // namespace

std::string_view watched_name(size_t group) { return group == kHostGroup ? "host" : kGroupNames[group]; }

Watch::Watch(const WatchOptions& options, int rank, const std::vector<std::string>& hosts,
             const std::vector<int>& processes, double now)
    : options_(options),
      rank_(rank),
      hosts_(hosts),
      processes_(processes),
      heard_(hosts.size(), now),
      beats_(hosts.size()),
      last_look_(now) {}

void Watch::set_mesh(const MeshSizes& sizes, uint64_t number) { mesh_ = sizes, mesh_number_ = number; }

void Watch::heard(int rank, const Beat& beat, double now) {
  heard_[static_cast<size_t>(rank)] = now;
  beats_[static_cast<size_t>(rank)] = beat;
}

std::optional<std::string> Watch::verdict(const Beat& own, double now, bool patient) {
  heard(rank_, own, now);
  if (patient) patient_until_ = now + std::min(options_.silence, kOldNews);
  const double gap = now - last_look_;
  last_look_ = now;
  if (gap > kStoodStill) {
    for (double& h : heard_) h = std::min(now, h + gap);
  }
  auto text = lost(now);
  return text || now < patient_until_ ? text : stuck();
}

std::string Watch::name(int rank) const {
  const auto r = static_cast<size_t>(rank);
  return fmt::format("rank {} (host {}, process {})", rank, hosts_[r], processes_[r]);
}

std::string Watch::names(const std::vector<int>& ranks) const {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) text += (i == 0 ? "" : ", ") + name(ranks[i]);
  if (ranks.size() > kNamed) text += fmt::format(" and {} more", ranks.size() - kNamed);
  return text;
}

std::string Watch::wait_of(int rank) const {
  const Beat::Wait& w = beats_[static_cast<size_t>(rank)].wait;
  return fmt::format("{} has waited {:.0f} s in {}", name(rank), w.seconds,
                     describe(static_cast<CollectiveKind>(w.kind), w.what, w.layer, w.sequence,
                              watched_name(static_cast<size_t>(w.group))));
}

std::string Watch::last_of(int rank, int waiting) const {
  const Beat::Wait& w = beats_[static_cast<size_t>(waiting)].wait;
  if (w.group < 0 || is_point_to_point(static_cast<CollectiveKind>(w.kind))) return "";
  const uint64_t entered = beats_[static_cast<size_t>(rank)].groups[static_cast<size_t>(w.group)].entered;
  if (entered >= w.order) return "";
  return fmt::format("; it last said that it had entered {} of the {} collectives that this takes", entered, w.order);
}

std::vector<int> Watch::members(size_t group, int rank) const {
  if (group != kHostGroup) return Mesh(mesh_, rank).members(static_cast<Group>(group));
  std::vector<int> all(hosts_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::optional<int> Watch::blocker(int rank) const {
  const Beat& beat = beats_[static_cast<size_t>(rank)];
  const Beat::Wait& w = beat.wait;
  if (w.group < 0) return {};
  if (is_point_to_point(static_cast<CollectiveKind>(w.kind))) return w.peer;
  const auto group = static_cast<size_t>(w.group);
  if (group != kHostGroup && beat.groups[group].mesh != mesh_number_) return {};
  std::optional<int> last;
  uint64_t least = w.order;
  for (int m : members(group, rank)) {
    const Beat::Progress& p = beats_[static_cast<size_t>(m)].groups[group];
    if (p.mesh > beat.groups[group].mesh) continue;
    const uint64_t entered = p.mesh == beat.groups[group].mesh ? p.entered : 0;
    if (entered < least) last = m, least = entered;
  }
  return last;
}

std::optional<std::string> Watch::lost(double now) const {
  std::vector<int> silent;
  double longest = 0;
  for (size_t r = 0; r < heard_.size(); ++r) {
    if (now - heard_[r] <= options_.silence) continue;
    silent.push_back(static_cast<int>(r));
    longest = std::max(longest, now - heard_[r]);
  }
  if (silent.empty()) return {};
  std::string text = fmt::format("{} {} lost: nothing was heard of {} for {:.0f} s", names(silent),
                                 silent.size() == 1 ? "is" : "are", silent.size() == 1 ? "it" : "them", longest);
  if (beats_[static_cast<size_t>(rank_)].wait.group >= 0) {
    text += "; " + wait_of(rank_) + last_of(silent.front(), rank_);
  }
  return text;
}

std::optional<std::string> Watch::stuck() const {
  int waiting = 0;
  const auto seconds = [&](int r) {
    const Beat::Wait& w = beats_[static_cast<size_t>(r)].wait;
    return w.group < 0 ? 0.0 : w.seconds;
  };
  for (size_t r = 1; r < beats_.size(); ++r) {
    if (seconds(static_cast<int>(r)) > seconds(waiting)) waiting = static_cast<int>(r);
  }
  if (seconds(waiting) <= options_.timeout) return {};
  // Whom it waits for may wait for another in turn.
  std::vector<int> chain{waiting};
  while (const auto next = blocker(chain.back())) {
    if (std::find(chain.begin(), chain.end(), *next) != chain.end()) {
      return fmt::format("{} wait for each other: {}; {}", names({chain.back(), *next}), wait_of(waiting),
                         wait_of(chain.back()));
    }
    chain.push_back(*next);
    if (seconds(*next) < kBarelyWaiting) break;
  }
  if (chain.size() == 1) return wait_of(waiting) + ", which all ranks have entered, but which does not end";
  const int stuck = chain.back(), before = chain[chain.size() - 2];
  std::string text =
      fmt::format("{} is stuck: it lives, but {}{}", name(stuck), wait_of(before), last_of(stuck, before));
  if (before != waiting) text += "; " + wait_of(waiting);
  return text;
}

}  // namespace yoke
