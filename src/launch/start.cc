#include "launch/start.h"

#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/training_state.h"
#include "comm/recorder.h"
#include "launch/mpirun.h"
#include "train/mesh_choice.h"

namespace yoke {

namespace {

namespace fs = std::filesystem;

std::vector<HostSlots> hosts_of(const TrainOptions& options) {
  if (!options.hosts.empty() && !options.hostfile.empty()) {
    fail_usage("--hosts and --hostfile are both given; keep one of them.");
  }
  if (!options.hosts.empty()) return parse_hosts(options.hosts);
  if (!options.hostfile.empty()) return read_hostfile(options.hostfile);
  return {};
}

/// The terminal of standard error, whose progress bar rank 0 draws; "" where it is none.
std::string terminal_of_errors() {
  const char* name = ::isatty(STDERR_FILENO) == 1 ? ::ttyname(STDERR_FILENO) : nullptr;
  return name == nullptr ? "" : name;
}

std::string own_path() {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", failure);
  if (failure) throw UserError(ExitCode::bug, fmt::format("/proc/self/exe can't be read: {}.", failure.message()));
  return path.string();
}

/// "all_reduce 'gradients', number 17 of group data", and whether the rank was in it or past it.
std::string last_collective(const fs::path& file) {
  try {
    const FlightRecord record = read_flight_record(file);
    if (record.entries.empty()) return "";
    const FlightEntry& last = record.entries.back();
    const std::string text = describe(last.kind, last.what, last.layer, last.sequence, last.group);
    return fmt::format("{} {}", last.state == FlightState::done ? ", after" : ", in", text);
  } catch (const UserError&) {
    return "";  // it was lost before it wrote one
  }
}

/// Whether the run has state to go on from.
std::string how_to_continue(const fs::path& output) {
  for (const CheckpointEntry& entry : find_checkpoints(output / "checkpoints", CheckDepth::sizes)) {
    if (entry.fault.empty()) {
      return fmt::format("The newest whole checkpoint is of step {}; continue with --resume auto.", entry.step);
    }
  }
  return "There is no checkpoint yet.";
}

/// The exit code of a job, after having said what no rank could say.
int code_of(const JobEnding& ending, const MpirunJob& job, const LoadedRecipe& loaded) {
  const fs::path output = loaded.recipe.output;
  const auto lost = [&](const std::string& what) {
    throw UserError(ExitCode::lost_rank, what + " " + how_to_continue(output));
  };
  if (ending.killed && ending.interrupt != 0 && ending.killed->signal.starts_with(std::to_string(SIGUSR1) + " ")) {
    // Asked to stop before it could save anything.
    return 128 + ending.interrupt;
  }
  if (ending.killed && !ending.fault_said) {
    const KilledRank& killed = *ending.killed;
    lost(fmt::format("rank {} ({}) was lost: signal {} ended it{}.", killed.rank, killed.host, killed.signal,
                     last_collective(FlightRecorder::path(output / "ranks", killed.rank))));
  }
  if ((ending.unreachable || ending.cut_off) && !ending.fault_said) {
    std::string hosts;
    for (const HostSlots& host : job.hosts) hosts += (hosts.empty() ? "" : ", ") + host.host;
    const std::string what = fmt::format("mpirun can't reach all of the hosts {}", hosts);
    if (ending.cut_off) lost(what + " any more.");
    fail_usage(
        "{}, or not run its daemon orted there; what its way there (ssh) said is above. Try: ssh HOST orted "
        "--version, from this host and from the others.",
        what);
  }
  if (ending.killed || ending.abandoned) return static_cast<int>(ExitCode::lost_rank);
  if (ending.code > 128 && ending.interrupt == 0) lost(fmt::format("mpirun itself ended with code {}.", ending.code));
  return ending.code;
}

}  // namespace

std::vector<std::string> rank_arguments(const TrainOptions& options, int ranks, const std::string& terminal) {
  std::vector<std::string> words{"train", "--resume=" + options.resume, fmt::format("--ranks={}", ranks)};
  if (!terminal.empty()) words.push_back("--terminal=" + terminal);
  if (options.dry_run) words.emplace_back("--dry-run");
  if (options.verbose) words.emplace_back("--verbose");
  if (options.profile) words.emplace_back("--profile");
  for (const RecipeOverride& override_ : options.overrides) {
    words.push_back(fmt::format("--{}={}", override_.key, override_.value));
  }
  words.emplace_back("--");
  words.push_back(options.recipe);
  return words;
}

std::optional<int> start_ranks(const TrainOptions& options) {
  if (launched()) {
    if (options.hosts.empty() && options.hostfile.empty()) return {};
    fail_usage("--hosts and --hostfile start ranks, but a launcher has started this process already; leave them out.");
  }
  if (options.ranks > 0) {
    fail_usage(
        "mpirun started this process without telling its rank; it must be the mpirun of the Open MPI that yoke "
        "is built with.");
  }
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  check_supported(loaded.recipe);
  MpirunJob job{.hosts = hosts_of(options), .as_root = ::geteuid() == 0};
  job.ranks = mesh_sizes(loaded, job.hosts.empty() ? std::nullopt : std::optional(ranks_of(job.hosts))).ranks();
  if (job.ranks == 1 && job.hosts.empty()) return {};
  job.mpirun = find_mpirun(job.ranks);
  job.program = rank_arguments(options, job.ranks, terminal_of_errors());
  job.program.insert(job.program.begin(), own_path());
  return code_of(run_job(job), job, loaded);
}

}  // namespace yoke
