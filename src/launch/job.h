// Files that start a run on a cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/recipe.h"

namespace yoke {

struct JobOptions {
  std::string recipe;
  std::vector<RecipeOverride> overrides;
  std::string name;                   ///< empty: the recipe's
  int nodes = 1;                      ///< hosts, or worker pods
  std::optional<int> ranks_per_node;  ///< absent: one a GPU, or what parallel asks for
  std::optional<int> gpus;            ///< of a node
  std::optional<int> cores;           ///< of a rank
  std::string memory;                 ///< of a node, as "64G"; empty: what the cluster gives
  std::string time;                   ///< "2-12:00:00" or another form of Slurm's; empty: the cluster's limit
  int restarts = 3;                   ///< after a lost rank, or when the time is up
  int grace = 120;                    ///< seconds before the end in which state is saved
  std::string yoke;                   ///< the program there; empty: where it is here, or `yoke` in an image
  std::string folder;                 ///< where the run starts, for relative paths; empty: here, or the volume

  std::string partition, account, mpi = "pmix";  ///< Slurm

  std::string image, name_space, claim, mount = "/data";  ///< Kubernetes
};

/// What both kinds of files are made of; checked.
struct Job {
  LoadedRecipe loaded;
  std::string name;        ///< letters, digits and '-'
  int ranks_per_node = 1;  ///< x nodes: the ranks that parallel asks for
  std::optional<int64_t> seconds;
};

/// UserError (usage) where recipe and options don't fit each other, with what would.
Job check_job(const JobOptions& options);

/// Seconds of a duration in one of Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
/// days-hours:minutes, days-hours:minutes:seconds. UserError (usage) for anything else.
int64_t parse_time(const std::string& text);

/// A batch script for sbatch.
std::string slurm_script(const JobOptions& options, const Job& job);

/// A ConfigMap with the recipe and an MPIJob (Kubeflow's MPI operator, v2beta1), as YAML.
std::string kubernetes_manifest(const JobOptions& options, const Job& job);

}  // namespace yoke
