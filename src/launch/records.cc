#include "launch/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "comm/recorder.h"

namespace yoke {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostNamed = 8;  // ranks that are behind in one group

/// Of ranks that were started together; files of an earlier run with more ranks are left out.
struct Records {
  std::vector<FlightRecord> ranks;
  std::vector<std::string> faults;
};

Records read_all(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    if (entry.path().extension() == ".flight") files.push_back(entry.path());
  }
  if (files.empty()) {
    fail_file("{}: no records of ranks are there. A run of several ranks keeps them in `ranks` of its output folder.",
              folder.string());
  }
  std::sort(files.begin(), files.end());
  Records all;
  for (const fs::path& file : files) {
    try {
      all.ranks.push_back(read_flight_record(file));
    } catch (const UserError& error) {
      all.faults.emplace_back(error.what());
    }
  }
  if (!all.ranks.empty()) {
    const int ranks = std::max_element(all.ranks.begin(), all.ranks.end(), [](const auto& a, const auto& b) {
                        return a.begun < b.begun;
                      })->ranks;
    std::erase_if(all.ranks, [&](const FlightRecord& r) { return r.ranks != ranks; });
  }
  return all;
}

double last_sign(const FlightRecord& record) {
  double last = record.begun;
  for (const FlightEntry& e : record.entries) last = std::max({last, e.asked, e.entered, e.done});
  return last;
}

const char* state_text(FlightState state) {
  switch (state) {
    case FlightState::asked:
      return "before";
    case FlightState::entered:
      return "in";
    case FlightState::done:
      return "after";
  }
  return "?";
}

/// "behind in group data: rank 2 (b) 569 of 570". Only groups whose collectives all their ranks count alike.
std::string behind_text(const std::vector<FlightRecord>& ranks) {
  std::map<std::string, std::vector<std::pair<const FlightRecord*, uint64_t>>> groups;
  for (const FlightRecord& record : ranks) {
    std::map<std::string, uint64_t> reached;
    for (const FlightEntry& e : record.entries) {
      if (is_point_to_point(e.kind) || e.group == "pipeline" || e.group == "ends") continue;
      if (e.state != FlightState::asked) reached[e.group] = std::max(reached[e.group], e.sequence);
    }
    for (const auto& [group, sequence] : reached) groups[group].emplace_back(&record, sequence);
  }
  std::string text;
  for (const auto& [group, reached] : groups) {
    uint64_t most = 0;
    for (const auto& [record, sequence] : reached) most = std::max(most, sequence);
    std::string names;
    size_t behind = 0;
    for (const auto& [record, sequence] : reached) {
      if (sequence == most || ++behind > kMostNamed) continue;
      names +=
          fmt::format("{}rank {} ({}) {} of {}", names.empty() ? "" : ", ", record->rank, record->host, sequence, most);
    }
    if (behind == 0) continue;
    if (behind > kMostNamed) names += fmt::format(" and {} more", behind - kMostNamed);
    text += fmt::format("behind in group {}: {}\n", group, names);
  }
  return text;
}

}  // namespace

std::string records_text(const fs::path& run, int last) {
  const Records all = read_all(fs::exists(run / "ranks") ? run / "ranks" : run);
  double end = 0;
  size_t host_width = 4;
  for (const FlightRecord& record : all.ranks) {
    end = std::max(end, last_sign(record));
    host_width = std::max(host_width, record.host.size());
  }
  std::string text = fmt::format("{:>5}  {:<{}}  {:>8}  {:>10}  {:>12}  collective\n", "rank", "host", host_width,
                                 "process", "before end", "bytes");
  for (const FlightRecord& record : all.ranks) {
    const std::string who = fmt::format("{:>5}  {:<{}}  {:>8}", record.rank, record.host, host_width, record.process);
    if (record.entries.empty()) {
      text += fmt::format("{}  {:>9.3f}s  {:>12}  none yet\n", who, end - record.begun, "");
      continue;
    }
    const size_t shown = std::min(record.entries.size(), static_cast<size_t>(std::max(1, last)));
    for (size_t i = record.entries.size() - shown; i < record.entries.size(); ++i) {
      const FlightEntry& e = record.entries[i];
      const double at = std::max({e.asked, e.entered, e.done});
      text += fmt::format("{}  {:>9.3f}s  {:>12}  {} {}\n", who, end - at, e.bytes, state_text(e.state),
                          describe(e.kind, e.what, e.layer, e.sequence, e.group));
    }
  }
  for (const std::string& fault : all.faults) text += fault + "\n";
  return text + behind_text(all.ranks);
}

}  // namespace yoke
