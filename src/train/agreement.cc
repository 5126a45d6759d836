#include "train/agreement.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "base/file.h"

namespace yoke {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostGroups = 8;  // of ranks with a value of their own that a message names

/// Value to the ranks that have it, in order of their first ranks.
using Groups = std::vector<std::pair<std::string, std::vector<int>>>;

Groups group(const std::vector<std::string>& values) {
  Groups groups;
  std::map<std::string, size_t> known;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const auto [at, fresh] = known.emplace(values[rank], groups.size());
    if (fresh) groups.emplace_back(values[rank], std::vector<int>());
    groups[at->second].second.push_back(static_cast<int>(rank));
  }
  return groups;
}

/// "A on rank 0 (a); B on ranks 1 to 3 (b)".
std::string groups_text(const Groups& groups, const RankNames& names) {
  std::string text;
  for (size_t i = 0; i < groups.size() && i < kMostGroups; ++i) {
    text += fmt::format("{}{} on {}", i ? "; " : "", groups[i].first, names.text(groups[i].second));
  }
  if (groups.size() > kMostGroups) text += fmt::format("; and {} more", groups.size() - kMostGroups);
  return text;
}

/// "section.key" to value, of what resolved_yaml() writes. Comments say where values came from and don't count.
std::map<std::string, std::string> values_of(const std::string& yaml) {
  std::map<std::string, std::string> values;
  std::string section;
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find("  # "));
    while (!line.empty() && line.back() == ' ') line.pop_back();
    const size_t colon = line.find(':');
    if (line.empty() || line[0] == '#' || colon == std::string::npos) continue;
    if (colon + 1 == line.size()) {
      section = line.substr(0, colon) + ".";
    } else if (line[0] == ' ') {
      values[section + line.substr(2, colon - 2)] = line.substr(colon + 2);
    } else {
      values[line.substr(0, colon)] = line.substr(colon + 2);
    }
  }
  return values;
}

void compare_recipes(const std::vector<RankFacts>& facts, const RankNames& names) {
  std::vector<std::map<std::string, std::string>> recipes;
  std::map<std::string, bool> keys;
  for (const RankFacts& f : facts) {
    recipes.push_back(values_of(f.recipe));
    for (const auto& [key, value] : recipes.back()) keys[key] = true;
  }
  std::string differences;
  for (const auto& [key, unused] : keys) {
    std::vector<std::string> values;
    for (const auto& recipe : recipes) {
      const auto at = recipe.find(key);
      values.push_back(at == recipe.end() ? "absent" : at->second);
    }
    const Groups groups = group(values);
    if (groups.size() > 1) {
      differences += fmt::format("{}{} is {}", differences.empty() ? "" : ". ", key, groups_text(groups, names));
    }
  }
  if (differences.empty()) return;
  throw SharedError(ExitCode::usage,
                    fmt::format("The ranks were started with different recipes: {}. Start all of them with the same "
                                "recipe and options.",
                                differences));
}

std::string compare_clocks(const std::vector<RankFacts>& facts, const RankNames& names) {
  std::vector<double> clocks;
  for (const RankFacts& f : facts) clocks.push_back(f.clock);
  std::sort(clocks.begin(), clocks.end());
  const double middle = clocks[clocks.size() / 2];
  std::vector<int> wrong;
  double most = 0;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    const double apart = facts[rank].clock - middle;
    if (std::abs(apart) > kClockWarning) wrong.push_back(static_cast<int>(rank));
    if (std::abs(apart) > std::abs(most)) most = apart;
  }
  if (wrong.empty()) return "";
  const std::string text = fmt::format("the clock of {} is up to {:.0f} seconds {} that of the other ranks",
                                       names.text(wrong), std::abs(most), most < 0 ? "behind" : "ahead of");
  if (std::abs(most) > kClockLimit) {
    throw SharedError(ExitCode::usage,
                      fmt::format("Clocks disagree: {}; at most {} are legal. Set it, as by NTP.", text, kClockLimit));
  }
  return text + "; set it, as by NTP";
}

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

cpu_set_t own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  return set;
}

std::string hex_of(const cpu_set_t& set) {
  std::string text;
  for (size_t i = 0; i < sizeof set; ++i) text += fmt::format("{:02x}", reinterpret_cast<const uint8_t*>(&set)[i]);
  return text;
}

/// Binds every later thread of this process to share `index` of `shares` equal parts of `set`.
void bind_to_share(const cpu_set_t& set, int index, int shares) {
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  const size_t each = cores.size() / static_cast<size_t>(shares);
  cpu_set_t part;
  CPU_ZERO(&part);
  for (size_t i = 0; i < each; ++i) CPU_SET(cores[static_cast<size_t>(index) * each + i], &part);
  ::sched_setaffinity(0, sizeof part, &part);
}

}  // namespace

std::string RankNames::text(const std::vector<int>& ranks) const {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1 && host(ranks[end]) == host(ranks[i])) ++end;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i == 2) text += fmt::format(", {}", ranks[i + 1]);
    if (end - i > 2) text += fmt::format(" to {}", ranks[end - 1]);
    const bool same_host_follows = end < ranks.size() && host(ranks[end]) == host(ranks[i]);
    if (!same_host_follows) text += fmt::format(" ({})", host(ranks[i]));
    i = end;
  }
  return text;
}

void together(HostGroup& host, const RankNames& names, const std::function<void()>& work) {
  std::string fault;
  try {
    work();
  } catch (const UserError& error) {
    fault = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
  const Groups groups = group(host.all_gather(fault));
  std::string message;
  std::optional<int> code;
  size_t faults = 0;
  for (const auto& [text, ranks] : groups) {
    if (text.empty() || ++faults > kMostGroups) continue;
    const size_t space = text.find(' ');
    if (!code) code = std::stoi(text.substr(0, space));
    if (!message.empty()) message += "\n";
    if (ranks.size() < static_cast<size_t>(names.ranks())) message += names.text(ranks) + ": ";
    message += text.substr(space + 1);
  }
  if (!code) return;
  if (faults > kMostGroups) message += fmt::format("\n... and {} more messages", faults - kMostGroups);
  throw SharedError(static_cast<ExitCode>(*code), message);
}

std::string compare_facts(const std::vector<RankFacts>& facts, const RankNames& names) {
  std::vector<std::string> versions;
  for (const RankFacts& f : facts) versions.push_back(f.version);
  const Groups groups = group(versions);
  if (groups.size() > 1) {
    throw SharedError(ExitCode::usage,
                      fmt::format("The ranks run different versions of yoke: {}. Install the same on all hosts.",
                                  groups_text(groups, names)));
  }
  compare_recipes(facts, names);
  return compare_clocks(facts, names);
}

std::string agree_on_start(HostGroup& host, const RankNames& names, const std::string& version,
                           const std::string& recipe) {
  host.barrier();
  const nlohmann::json mine{{"version", version}, {"recipe", recipe}, {"clock", wall_clock()}};
  std::vector<RankFacts> facts;
  for (const std::string& text : host.all_gather(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    const nlohmann::json json = nlohmann::json::parse(text);
    facts.push_back({json.at("version"), json.at("recipe"), json.at("clock")});
  }
  return compare_facts(facts, names);
}

void agree_on(HostGroup& host, const RankNames& names, const std::string& what, const std::string& value, ExitCode code,
              const std::string& advice) {
  const std::string text = differing(host, names, value);
  if (text.empty()) return;
  throw SharedError(code, fmt::format("Ranks differ in {}: {}. {}", what, text, advice));
}

std::string differing(HostGroup& host, const RankNames& names, const std::string& value) {
  const Groups groups = group(host.all_gather(value));
  return groups.size() > 1 ? groups_text(groups, names) : "";
}

std::string agree_on_samples(HostGroup& host, const RankNames& names, const MeshSizes& sizes, const std::string& hash) {
  const std::vector<std::string> hashes = host.all_gather(hash);
  const Mesh mesh(sizes);
  std::vector<std::string> of_data(static_cast<size_t>(sizes.data));
  std::vector<int> first(of_data.size(), -1);
  std::map<std::string, int> seen;  // to the first data rank
  for (int rank = 0; rank < names.ranks(); ++rank) {
    const auto data = static_cast<size_t>(mesh.place_of(rank).data);
    const std::string& here = hashes[static_cast<size_t>(rank)];
    if (first[data] < 0) {
      first[data] = rank;
      of_data[data] = here;
    } else if (of_data[data] != here) {
      throw SharedError(ExitCode::bad_file,
                        fmt::format("{} share data rank {} but read different samples at first (hashes {} and {}); the "
                                    "data must be the same on all hosts.",
                                    names.text({first[data], rank}), data, of_data[data], here));
    }
  }
  for (size_t data = 0; data < of_data.size(); ++data) {
    if (of_data[data].empty()) continue;
    const auto [at, fresh] = seen.emplace(of_data[data], static_cast<int>(data));
    if (fresh) continue;
    const int other = first[static_cast<size_t>(at->second)];
    throw SharedError(ExitCode::bad_file,
                      fmt::format("{} are different data ranks but read the same samples at first (hash {}); a data "
                                  "set that repeats itself does that: remove what is there twice, or use fewer data "
                                  "ranks.",
                                  names.text({other, first[data]}), of_data[data]));
  }
  std::string text = "first samples:";
  for (size_t data = 0; data < of_data.size(); ++data) {
    text += fmt::format(" data {} {}", data, of_data[data].empty() ? "none" : of_data[data]);
  }
  return text;
}

void agree_on_folder(HostGroup& host, const RankNames& names, int rank, const fs::path& folder, double patience) {
  // The name of one start, so that nothing of an earlier one is taken for it.
  const std::string name = host.broadcast(fmt::format(".shared-{}-{:08x}", ::getpid(), std::random_device()()));
  together(host, names, [&] {
    if (rank != 0) return;
    std::error_code failure;
    fs::create_directories(folder, failure);
    if (failure) fail_file("{}: can't be made: {}.", folder.string(), failure.message());
    write_file(folder / name, name);
  });
  const std::string where = host.broadcast(folder.string());  // for messages, which are the same on all ranks
  bool seen = false;
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    std::error_code failure;
    // Reading the folder makes network file systems ask their server.
    for (const auto& entry : fs::directory_iterator(folder, failure)) seen = seen || entry.path().filename() == name;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (seen || waited.count() > patience) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const std::vector<std::string> all = host.all_gather(seen ? "1" : "0");
  if (rank == 0) {
    std::error_code failure;
    fs::remove(folder / name, failure);
  }
  std::vector<int> blind;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == "0") blind.push_back(static_cast<int>(r));
  }
  if (blind.empty()) return;
  throw SharedError(ExitCode::bad_file,
                    fmt::format("The folder {} is not shared: {} can't see the file that rank 0 ({}) wrote there. "
                                "Checkpoints need a folder that all hosts share; set output to one.",
                                where, names.text(blind), names.host(0)));
}

std::vector<size_t> bytes_by_rank(HostGroup* host, size_t mine) {
  if (host == nullptr) return {mine};
  std::vector<size_t> all;
  for (const std::string& text : host->all_gather(std::to_string(mine))) all.push_back(std::stoull(text));
  return all;
}

int share_cores(HostGroup& host, const RankNames& names, int rank, int cores, bool bind) {
  const cpu_set_t mine = own_cores();
  const std::vector<std::string> sets = host.all_gather(hex_of(mine));
  int sharing = 0, index = 0;
  bool equal = true;
  for (int r = 0; r < names.ranks(); ++r) {
    if (names.host(r) != names.host(rank)) continue;
    const std::string& theirs = sets[static_cast<size_t>(r)];
    bool overlap = false;
    for (size_t i = 0; i < theirs.size(); i += 2) {
      const auto byte = static_cast<uint8_t>(std::stoi(theirs.substr(i, 2), nullptr, 16));
      overlap = overlap || (byte & reinterpret_cast<const uint8_t*>(&mine)[i / 2]) != 0;
    }
    if (!overlap) continue;
    equal = equal && theirs == sets[static_cast<size_t>(rank)];
    if (r < rank) ++index;
    ++sharing;
  }
  // A quota may be smaller than the set; shares of the set are bound to only where every rank has all the cores that
  // it may use.
  if (bind && equal && sharing > 1 && CPU_COUNT(&mine) == cores && cores >= sharing)
    bind_to_share(mine, index, sharing);
  return std::max(1, cores / std::max(1, sharing));
}

}  // namespace yoke
