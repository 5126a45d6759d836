#include "train/pace.h"

#include <algorithm>
#include <array>
#include <bit>
#include <ctime>

#include "base/log.h"

namespace yoke {

namespace {

using Clock = std::chrono::steady_clock;

using Numbers = std::array<double, sizeof(RankPace) / sizeof(double)>;

constexpr double kLongEnough = 5;  // seconds in which a few lost tenths are no accident

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// The lower one of two.
double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What explains at least half of what was lost. `others`: ranks of its like, itself included.
std::string cause_of(const RankPace& pace, const std::vector<const RankPace*>& others, double lost) {
  const auto more = [&](const auto& value) {
    std::vector<double> values;
    for (const RankPace* other : others) values.push_back(value(*other));
    return value(pace) - (others.size() > 1 ? middle_of(values) : 0);
  };
  const double throttled = more([](const RankPace& p) { return p.throttled; });
  if (throttled >= lost / 2)
    return fmt::format("the processor quota of its cgroup held it back for {:.1f} s", throttled);
  const double reading = more([](const RankPace& p) { return p.reading; });
  if (reading >= lost / 2) return fmt::format("it took {:.1f} s longer to read samples", reading);
  const double queued = more([](const RankPace& p) { return p.queued; });
  if (queued >= lost / 2) {
    return fmt::format("its threads waited {:.1f} s for a core: something else runs on its cores", queued);
  }
  const double still = more([](const RankPace& p) { return p.busy() - p.computed; });
  const double faults = more([](const RankPace& p) { return p.faults; });
  if (still >= lost / 2 && faults >= 100 * lost) {
    return fmt::format("{:.0f} pages of its memory had to be read from disk", faults);
  }
  if (still >= lost / 2) return fmt::format("its process stood still for {:.1f} s, as when it is stopped", still);
  return "its cores computed longer: a lower clock, as when a processor is too hot, or work that is larger";
}

}  // namespace

std::vector<SlowRank> slow_ranks(const std::vector<RankPace>& paces, const std::vector<double>& best,
                                 const RankNames& names, const MeshSizes& sizes) {
  std::vector<SlowRank> slow;
  const Mesh mesh(sizes);
  for (int rank = 0; rank < names.ranks(); ++rank) {
    const RankPace& pace = paces[static_cast<size_t>(rank)];
    std::vector<const RankPace*> like;
    std::vector<double> busy;
    for (int other = 0; other < names.ranks(); ++other) {
      if (mesh.place_of(other).pipeline != mesh.place_of(rank).pipeline) continue;
      like.push_back(&paces[static_cast<size_t>(other)]);
      busy.push_back(like.back()->busy());
    }
    const double usual = like.size() > 1 ? middle_of(busy) : best[static_cast<size_t>(rank)] * pace.steps;
    const double lost = pace.busy() - usual;
    if (usual <= 0 || lost <= kSlowShare * pace.seconds) continue;
    slow.push_back({.rank = rank, .host = names.host(rank), .lost = lost, .cause = cause_of(pace, like, lost)});
  }
  return slow;
}

Pace::Pace(Team& team, const MeshSizes& sizes)
    : team_(team), sizes_(sizes), all_(static_cast<size_t>(team.ranks())), best_(all_.size()), costs_(all_.size()) {
  if (!team.alone()) without_ = deprivation();
}

Pace::Clocks Pace::clocks() const {
  return {.now = Clock::now(), .waited = team_.mpi()->waited(), .computed = thread_seconds()};
}

void Pace::begin() {
  if (!team_.alone()) begin_ = clocks();
}

void Pace::read() { read_ = Clock::now(); }

void Pace::end() {
  if (team_.alone()) return;
  const Clocks end = clocks();
  mine_.steps += 1;
  mine_.seconds += seconds_between(begin_.now, end.now);
  mine_.waited += end.waited - begin_.waited;
  mine_.reading += seconds_between(begin_.now, read_);
  mine_.computed += end.computed - begin_.computed;
}

std::vector<SlowRank> Pace::share() {
  if (team_.alone()) return {};
  const Deprivation without = deprivation();
  mine_.queued = std::max(0.0, without.queued - without_.queued);  // a thread that ended takes its time along
  mine_.throttled = without.throttled - without_.throttled;
  mine_.faults = without.faults - without_.faults;
  without_ = without;
  // A row a rank, zeros but for this one's.
  std::vector<double> rows(all_.size() * std::tuple_size_v<Numbers>);
  const auto numbers = std::bit_cast<Numbers>(mine_);
  std::copy(numbers.begin(), numbers.end(), rows.begin() + team_.rank() * static_cast<std::ptrdiff_t>(numbers.size()));
  team_.host().all_reduce(rows, Reduction::sum);
  mine_ = {};
  if (!team_.first()) return {};
  for (size_t rank = 0; rank < all_.size(); ++rank) {
    auto sums = std::bit_cast<Numbers>(all_[rank]);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += rows[rank * sums.size() + i];
    all_[rank] = std::bit_cast<RankPace>(sums);
  }
  return all_[0].seconds < kLongEnough ? std::vector<SlowRank>() : judge();
}

std::vector<SlowRank> Pace::judge() {
  const std::vector<SlowRank> slow = slow_ranks(all_, best_, team_.names(), sizes_);
  seconds_ += all_[0].seconds;
  for (size_t rank = 0; rank < all_.size(); ++rank) {
    const double a_step = all_[rank].busy() / std::max(1.0, all_[rank].steps);
    if (best_[rank] == 0 || a_step < best_[rank]) best_[rank] = a_step;
  }
  for (const SlowRank& rank : slow) {
    Cost& cost = costs_[static_cast<size_t>(rank.rank)];
    cost.lost += rank.lost;
    cost.cause = rank.cause;
    if (cost.lost < 2 * cost.warned_at) continue;
    cost.warned_at = cost.lost;
    log::warn("{} is slow: {:.1f} of the last {:.1f} s went by waiting for it ({:.1f} s so far): {}",
              team_.names().text({rank.rank}), rank.lost, all_[0].seconds, cost.lost, rank.cause);
  }
  all_.assign(all_.size(), {});
  return slow;
}

void Pace::say_total() const {
  std::string text;
  for (size_t rank = 0; rank < costs_.size(); ++rank) {
    if (costs_[rank].lost == 0) continue;
    text += fmt::format("{}{:.1f} s by {}", text.empty() ? "" : ", ", costs_[rank].lost,
                        team_.names().text({static_cast<int>(rank)}));
  }
  if (!text.empty()) log::warn("lost to slow ranks, of {:.1f} s of training: {}", seconds_, text);
}

}  // namespace yoke
