#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/overrides.h"
#include "launch/job.h"
#include "launch/records.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"(Examples:
  yoke launch slurm recipe.yaml --nodes 2 --ranks-per-node 8 --time 24:00:00
  yoke launch slurm recipe.yaml --parallel.tensor 4 --partition long --to job.sh && sbatch job.sh
  yoke launch kubernetes recipe.yaml --nodes 4 --ranks-per-node 2 --image registry/yoke --claim runs
  yoke launch records runs/recipe --last 5

docs/launch.md explains what the files do.)";

struct LaunchCommand {
  JobOptions job;
  std::string to;
};

using Maker = std::string (*)(const JobOptions&, const Job&);

void add_common(CLI::App& command, const std::shared_ptr<LaunchCommand>& typed) {
  JobOptions& job = typed->job;
  command.add_option("RECIPE", job.recipe, "The recipe, a YAML file")->required()->type_name("FILE");
  command.add_option("--to", typed->to, "The file to write; default: the recipe's name beside the recipe; -: print it");
  command.add_option("--name", job.name, "Name of the job; default: the recipe's");
  command.add_option("--nodes", job.nodes, "Hosts, or worker pods")->capture_default_str();
  command.add_option("--ranks-per-node", job.ranks_per_node,
                     "Default: one a GPU, or what the recipe's parallel asks for");
  command.add_option("--gpus", job.gpus, "GPUs of a node");
  command.add_option("--cores", job.cores, "Processor cores of a rank");
  command.add_option("--memory", job.memory, "Memory of a node, as the cluster writes it: 64G, 64Gi");
  command.add_option("--time", job.time, "Longest time, as 24:00:00 or 2-12:00:00");
  command.add_option("--restarts", job.restarts, "Restarts after a lost rank or when the time is up")
      ->capture_default_str();
  command.add_option("--grace", job.grace, "Seconds before the end in which the state is saved")->capture_default_str();
  command.add_option("--yoke", job.yoke, "The program there; default: this one, or yoke in an image");
  command.add_option("--folder", job.folder, "Where the run starts; default: this folder, or the volume");
  add_recipe_overrides(command, typed, job.overrides);
  command.footer(kExamples);
}

void write(LaunchCommand& typed, Maker make, const char* ending, const char* start) {
  const std::string text = make(typed.job, check_job(typed.job));
  if (typed.to == "-") {
    fmt::print("{}", text);
    return;
  }
  if (typed.to.empty()) typed.to = std::filesystem::path(typed.job.recipe).replace_extension(ending).string();
  write_file(typed.to, text);
  fmt::print("{} written; start it with: {} {}\n", typed.to, start, typed.to);
}

void add_slurm(CLI::App& app) {
  CLI::App* command = app.add_subcommand("slurm", "A batch script for sbatch");
  const auto typed = std::make_shared<LaunchCommand>();
  add_common(*command, typed);
  command->add_option("--partition", typed->job.partition, "Slurm's partition");
  command->add_option("--account", typed->job.account, "Slurm's account");
  command->add_option("--mpi", typed->job.mpi, "How srun starts MPI; srun --mpi=list names what there is")
      ->check(CLI::IsMember({"pmix", "pmi2"}))
      ->capture_default_str();
  command->callback([typed] {
    if (typed->job.yoke.empty()) typed->job.yoke = std::filesystem::read_symlink("/proc/self/exe").string();
    if (typed->job.folder.empty()) typed->job.folder = std::filesystem::current_path().string();
    write(*typed, slurm_script, ".slurm.sh", "sbatch");
  });
}

void add_kubernetes(CLI::App& app) {
  CLI::App* command = app.add_subcommand("kubernetes", "An MPIJob for Kubeflow's MPI operator");
  const auto typed = std::make_shared<LaunchCommand>();
  add_common(*command, typed);
  JobOptions& job = typed->job;
  command->add_option("--image", job.image, "Container image with yoke, Open MPI and an SSH server")->required();
  command
      ->add_option("--claim", job.claim,
                   "PersistentVolumeClaim with model, data and runs, for many readers and writers")
      ->required();
  command->add_option("--mount", job.mount, "Where the claim appears in the containers")->capture_default_str();
  command->add_option("--namespace", job.name_space, "Kubernetes's namespace");
  command->callback([typed] {
    if (typed->job.yoke.empty()) typed->job.yoke = "yoke";
    if (typed->job.folder.empty()) typed->job.folder = typed->job.mount;
    write(*typed, kubernetes_manifest, ".kubernetes.yaml", "kubectl apply -f");
  });
}

void add_records(CLI::App& app) {
  struct Typed {
    std::string run;
    int last = 1;
  };
  CLI::App* command = app.add_subcommand("records", "What each rank of a run did last, and who is behind");
  const auto typed = std::make_shared<Typed>();
  command->add_option("RUN", typed->run, "A run's output folder")->required()->type_name("FOLDER");
  command->add_option("--last", typed->last, "So many collectives of each rank")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->callback([typed] { fmt::print("{}", records_text(typed->run, typed->last)); });
}

}  // namespace

void add_launch_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("launch", "Files that start a run on a cluster, and what its ranks did last");
  command->require_subcommand(1);
  add_slurm(*command);
  add_kubernetes(*command);
  add_records(*command);
  command->footer(kExamples);
}

}  // namespace yoke
