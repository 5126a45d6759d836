#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "launch/job.h"

namespace yoke {

namespace {

/// As one word of a shell.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

/// As sbatch reads a value: it takes quotes and backslashes away.
std::string in_directive(const std::string& text) {
  std::string word = "\"";
  for (const char c : text) word += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return word + "\"";
}

std::string directives(const JobOptions& options, const Job& job) {
  std::string text;
  const auto add = [&](const std::string& directive) { text += "#SBATCH --" + directive + "\n"; };
  add("job-name=" + job.name);
  add("chdir=" + in_directive(options.folder));
  add(fmt::format("nodes={}", options.nodes));
  add(fmt::format("ntasks-per-node={}", job.ranks_per_node));
  if (options.cores) add(fmt::format("cpus-per-task={}", *options.cores));
  if (options.gpus) add(fmt::format("gpus-per-node={}", *options.gpus));
  if (!options.memory.empty()) add("mem=" + options.memory);
  if (!options.time.empty()) add("time=" + options.time);
  if (!options.partition.empty()) add("partition=" + options.partition);
  if (!options.account.empty()) add("account=" + options.account);
  add("output=" + job.name + "-%j.log");
  add("open-mode=append");
  add("requeue");
  add(fmt::format("signal=TERM@{}", options.grace));
  return text;
}

}  // namespace

std::string slurm_script(const JobOptions& options, const Job& job) {
  std::string command = quoted(options.yoke) + " train " + quoted(options.recipe) + " --resume auto";
  for (const RecipeOverride& override_ : options.overrides) {
    command += fmt::format(" \\\n  {}", quoted(fmt::format("--{}={}", override_.key, override_.value)));
  }
  return fmt::format(R"sh(#!/bin/bash
# yoke train on {nodes} node(s) with {ranks} rank(s) each. Start it with: sbatch THIS_FILE
#
# {grace} s before the time limit Slurm sends SIGTERM to the ranks, which save their state and end with code 6. After that,
# and after a lost rank (code 7, or killed by a signal), the job is queued again and continues from the newest whole
# checkpoint, at most {restarts} time(s). Any other failure would come back, so it ends the job.
{directives}
restarts=${{SLURM_RESTART_COUNT:-0}}
echo "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((restarts + 1))"

srun --mpi={mpi} --cpu-bind=none{cores} --kill-on-bad-exit=1 \
  {command}
code=$?

if [ "$code" -eq 7 ] || [ "$code" -gt 128 ]; then
  {yoke} launch records {output} >&2  # srun has said which task ended first
fi
if [ "$code" -eq 6 ] || [ "$code" -eq 7 ] || [ "$code" -gt 128 ]; then
  if [ "$restarts" -lt {restarts} ]; then
    echo "yoke ended with code $code; queued again"
    scontrol requeue "$SLURM_JOB_ID" && exit "$code"
    echo "the job can't be queued again; continue with: sbatch THIS_FILE" >&2
  else
    echo "yoke ended with code $code; not queued again after {restarts} restart(s)" >&2
  fi
fi
exit "$code"
)sh",
                     fmt::arg("nodes", options.nodes), fmt::arg("ranks", job.ranks_per_node),
                     fmt::arg("grace", options.grace), fmt::arg("restarts", options.restarts),
                     fmt::arg("directives", directives(options, job)), fmt::arg("mpi", options.mpi),
                     fmt::arg("cores", options.cores ? fmt::format(" --cpus-per-task={}", *options.cores) : ""),
                     fmt::arg("command", command), fmt::arg("yoke", quoted(options.yoke)),
                     fmt::arg("output", quoted(job.loaded.recipe.output)));
}

}  // namespace yoke
