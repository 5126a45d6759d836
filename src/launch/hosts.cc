#include "launch/hosts.h"

#include <charconv>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace yoke {

namespace {

constexpr size_t kLargestHostfile = size_t{1} << 24;  // bytes
constexpr int kMostRanksOfHost = 4096;

int read_ranks(std::string_view text, const std::string& place) {
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1 || ranks > kMostRanksOfHost) {
    fail_usage("{}: '{}' is no number of ranks; it must be from 1 to {}.", place, text, kMostRanksOfHost);
  }
  return ranks;
}

/// "a" or "a:4". A name must not be taken for an option, nor be more than one.
HostSlots read_host(std::string_view text, const std::string& place) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  constexpr std::string_view kLegal = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@";
  if (name.empty() || name[0] == '-' || name.find_first_not_of(kLegal) != std::string_view::npos) {
    fail_usage("{}: '{}' is no host; hosts are names or IPv4 addresses, each with its ranks: node1:4.", place, text);
  }
  return {std::string(name), colon == std::string_view::npos ? 1 : read_ranks(text.substr(colon + 1), place)};
}

void refuse_twice(const std::vector<HostSlots>& hosts, const std::string& place) {
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (hosts[i].host == hosts[j].host) {
        fail_usage("{}: host {} is there twice; name it once, with all its ranks: {}:{}.", place, hosts[i].host,
                   hosts[i].host, hosts[i].ranks + hosts[j].ranks);
      }
    }
  }
}

}  // namespace

std::vector<HostSlots> parse_hosts(const std::string& text) {
  std::vector<HostSlots> hosts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    hosts.push_back(read_host(std::string_view(text).substr(begin, end - begin), "--hosts"));
    begin = end + 1;
  }
  refuse_twice(hosts, "--hosts");
  return hosts;
}

std::vector<HostSlots> read_hostfile(const std::filesystem::path& file) {
  std::string text;
  try {
    text = read_file(file, kLargestHostfile);
  } catch (const UserError& error) {
    fail_usage("--hostfile {}", error.what());
  }
  std::vector<HostSlots> hosts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string place = fmt::format("{}:{}", file.string(), ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    hosts.push_back(read_host(word, place));
    while (words >> word) {
      constexpr std::string_view kSlots = "slots=", kMost = "max_slots=", kMostToo = "max-slots=";
      if (word.starts_with(kSlots)) {
        hosts.back().ranks = read_ranks(std::string_view(word).substr(kSlots.size()), place);
      } else if (!word.starts_with(kMost) && !word.starts_with(kMostToo)) {
        fail_usage("{}: '{}' is nothing that hostfiles have; a line is a host and slots=N.", place, word);
      }
    }
  }
  if (hosts.empty()) fail_usage("--hostfile {}: it names no host; a line is a host and slots=N.", file.string());
  refuse_twice(hosts, file.string());
  return hosts;
}

int ranks_of(const std::vector<HostSlots>& hosts) {
  int ranks = 0;
  for (const HostSlots& host : hosts) ranks += host.ranks;
  return ranks;
}

}  // namespace yoke
