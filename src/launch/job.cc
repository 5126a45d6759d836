#include "launch/job.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "train/mesh_choice.h"

namespace yoke {

namespace {

constexpr int kMostNodes = 1 << 16, kMostOfNode = 4096, kMostRestarts = 1000;
constexpr size_t kLongestName = 50;  // of Kubernetes's 63, which also hold what the operator appends

void check_range(const char* option, int value, int least, int most) {
  if (value < least || value > most) fail_usage("{} is {}; it must be from {} to {}.", option, value, least, most);
}

/// Words that go into a file as they are.
void check_word(const char* option, const std::string& value, const char* what) {
  constexpr std::string_view kLegal = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:@,+";
  if (value.find_first_not_of(kLegal) != std::string::npos || (!value.empty() && value[0] == '-')) {
    fail_usage("{} is '{}'; it must be {}.", option, value, what);
  }
}

/// What clusters take as a name.
std::string job_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const char small = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const bool legal = (small >= 'a' && small <= 'z') || (small >= '0' && small <= '9');
    if (legal) {
      name += small;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  name = name.substr(0, kLongestName);
  while (!name.empty() && name.back() == '-') name.pop_back();
  if (name.empty()) return "yoke";
  return name[0] >= '0' && name[0] <= '9' ? "yoke-" + name : name;
}

int ranks_per_node(const JobOptions& options, const LoadedRecipe& loaded) {
  if (options.ranks_per_node) return *options.ranks_per_node;
  if (options.gpus) return *options.gpus;
  const int asked = mesh_sizes(loaded, {}).ranks();
  if (asked % options.nodes != 0) {
    fail_usage(
        "parallel asks for {} ranks{}, which {} nodes can't share evenly; give --ranks-per-node, or a number of nodes "
        "that divides them.",
        asked, loaded.recipe.parallel.data ? "" : " with data: auto taken as 1", options.nodes);
  }
  return asked / options.nodes;
}

}  // namespace

Job check_job(const JobOptions& options) {
  check_range("--nodes", options.nodes, 1, kMostNodes);
  if (options.ranks_per_node) check_range("--ranks-per-node", *options.ranks_per_node, 1, kMostOfNode);
  if (options.gpus) check_range("--gpus", *options.gpus, 1, kMostOfNode);
  if (options.cores) check_range("--cores", *options.cores, 1, kMostOfNode);
  check_range("--restarts", options.restarts, 0, kMostRestarts);
  check_range("--grace", options.grace, 1, 65535);
  if (options.folder.find('\n') != std::string::npos) fail_usage("--folder has a line break.");
  check_word("--partition", options.partition, "the name of a partition");
  check_word("--account", options.account, "the name of an account");
  check_word("--memory", options.memory, "a size as the cluster writes it, such as 64G or 64Gi");
  check_word("--image", options.image, "the name of an image");
  check_word("--namespace", options.name_space, "the name of a namespace");
  check_word("--claim", options.claim, "the name of a PersistentVolumeClaim");
  Job job{.loaded = load_recipe(options.recipe, options.overrides)};
  check_supported(job.loaded.recipe);
  job.name = job_name(options.name.empty() ? std::filesystem::path(options.recipe).stem().string() : options.name);
  job.ranks_per_node = ranks_per_node(options, job.loaded);
  mesh_sizes(job.loaded, options.nodes * job.ranks_per_node);  // the job has the ranks that parallel asks for
  if (!options.time.empty()) job.seconds = parse_time(options.time);
  if (job.seconds && *job.seconds <= options.grace) {
    fail_usage("--time is {} seconds; it must be more than the {} seconds (--grace) in which state is saved.",
               *job.seconds, options.grace);
  }
  return job;
}

int64_t parse_time(const std::string& text) {
  const auto wrong = [&] {
    fail_usage(
        "--time is '{}'; it must be minutes, minutes:seconds, hours:minutes:seconds, days-hours, "
        "days-hours:minutes or days-hours:minutes:seconds, and at least a second.",
        text);
  };
  std::vector<int64_t> parts;
  const size_t dash = text.find('-');
  int64_t days = 0;
  const auto number = [&](std::string_view digits) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value > 10000000) wrong();
    return value;
  };
  const std::string_view all = text;
  if (dash != std::string::npos) days = number(all.substr(0, dash));
  std::string_view rest = dash == std::string::npos ? all : all.substr(dash + 1);
  for (;;) {
    const size_t colon = rest.find(':');
    parts.push_back(number(rest.substr(0, colon)));
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (parts.size() > 3) wrong();
  parts.resize(3);
  const bool from_minutes = dash == std::string::npos && std::count(text.begin(), text.end(), ':') < 2;
  const int64_t seconds = from_minutes ? parts[0] * 60 + parts[1] : parts[0] * 3600 + parts[1] * 60 + parts[2];
  if (days * 86400 + seconds < 1) wrong();
  return days * 86400 + seconds;
}

}  // namespace yoke
