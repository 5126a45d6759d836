#include "comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace yoke {

namespace {

using Variables = std::function<const char*(const char*)>;

std::optional<int> number(const Variables& variable, const char* name) {
  const char* text = variable(name);
  if (text == nullptr) return {};
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < 0) {
    fail_usage(
        "the environment variable {} is '{}'; a launcher sets it to a whole number of at least 0. Unset it, or "
        "start yoke with mpirun or srun.",
        name, text);
  }
  return value;
}

// "2" or "4(x2),3": tasks a node, in the order of nodes.
int tasks_of_node(const std::string& list, int node) {
  size_t at = 0;
  while (at < list.size()) {
    char* end = nullptr;
    const long tasks = std::strtol(list.c_str() + at, &end, 10);
    long times = 1;
    if (end[0] == '(' && end[1] == 'x') {
      times = std::strtol(end + 2, &end, 10);
      if (*end == ')') ++end;
    }
    if (node < times) return static_cast<int>(tasks);
    node -= static_cast<int>(times);
    if (*end != ',') break;
    at = static_cast<size_t>(end - list.c_str()) + 1;
  }
  return 0;
}

void check(const Launched& l) {
  if (l.ranks < 1 || l.rank >= l.ranks || l.local_ranks < 1 || l.local_rank >= l.local_ranks ||
      l.local_ranks > l.ranks) {
    fail_usage(
        "the environment says that this is rank {} of {} ({} of {} on this host), which can't be. Start yoke with "
        "mpirun or srun, in an environment that holds no other launcher's variables.",
        l.rank, l.ranks, l.local_rank, l.local_ranks);
  }
}

std::optional<Launched> by_open_mpi(const Variables& variable) {
  const auto rank = number(variable, "OMPI_COMM_WORLD_RANK"), ranks = number(variable, "OMPI_COMM_WORLD_SIZE");
  if (!rank || !ranks) return {};
  return Launched{"mpirun", *rank, *ranks, number(variable, "OMPI_COMM_WORLD_LOCAL_RANK").value_or(0),
                  number(variable, "OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1)};
}

// The batch script of a Slurm job has SLURM_PROCID, too; only what srun starts with support of MPI is a rank.
std::optional<Launched> by_slurm(const Variables& variable) {
  bool pmi = false;
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"}) pmi = pmi || variable(name) != nullptr;
  auto ranks = number(variable, "SLURM_STEP_NUM_TASKS");
  if (!pmi) {
    if (ranks.value_or(1) > 1) {
      fail_usage(
          "srun started {} tasks without support of MPI, so they can't find each other. Start them with "
          "`srun --mpi=pmix` (`srun --mpi=list` shows what this Slurm has).",
          *ranks);
    }
    return {};
  }
  if (!ranks) ranks = number(variable, "SLURM_NTASKS");
  const auto rank = number(variable, "SLURM_PROCID");
  if (!rank || !ranks) return {};
  Launched l{"srun", *rank, *ranks, number(variable, "SLURM_LOCALID").value_or(0), 1};
  const char* steps = variable("SLURM_STEP_TASKS_PER_NODE");
  if (steps == nullptr) steps = variable("SLURM_TASKS_PER_NODE");
  const int here = steps == nullptr ? 0 : tasks_of_node(steps, number(variable, "SLURM_NODEID").value_or(0));
  l.local_ranks = here > 0 ? here : l.local_rank + 1;
  return l;
}

}  // namespace

std::optional<Launched> launched(const Variables& variable) {
  auto found = by_open_mpi(variable);
  if (!found) found = by_slurm(variable);
  if (found) check(*found);
  return found;
}

std::optional<Launched> launched() {
  return launched([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace yoke
