#include <sstream>

#include "base/error.h"
#include "launch/job.h"
#include "train/recipe_rules.h"

namespace yoke {

namespace {

constexpr const char* kRecipeFolder = "/etc/yoke";

std::string indented(const std::string& text, int columns) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    out += line.empty() ? "\n" : std::string(static_cast<size_t>(columns), ' ') + line + "\n";
  }
  return out;
}

std::string metadata(const JobOptions& options, const Job& job) {
  std::string text = fmt::format("metadata:\n  name: {}\n", yaml_text(job.name));
  if (!options.name_space.empty()) text += fmt::format("  namespace: {}\n", yaml_text(options.name_space));
  return text;
}

/// What a worker's container gets; requests equal limits, so that nobody takes it away.
std::string worker_resources(const JobOptions& options, const Job& job) {
  std::string limits;
  if (options.cores) limits += fmt::format("cpu: {}\n", *options.cores * job.ranks_per_node);
  if (!options.memory.empty()) limits += fmt::format("memory: {}\n", yaml_text(options.memory));
  if (options.gpus) limits += fmt::format("nvidia.com/gpu: {}\n", *options.gpus);
  if (limits.empty()) return "";
  return "resources:\n  requests:\n" + indented(limits, 4) + "  limits:\n" + indented(limits, 4);
}

std::string pod(const JobOptions& options, const Job& job, bool launcher) {
  const std::string role = launcher ? "launcher" : "worker";
  std::string container =
      fmt::format("name: {}\nimage: {}\nworkingDir: {}\n", role, yaml_text(options.image), yaml_text(options.folder));
  if (launcher) {
    std::vector<std::string> words{options.yoke, "train", fmt::format("{}/recipe.yaml", kRecipeFolder), "--resume=auto",
                                   "--hostfile=/etc/mpi/hostfile"};
    for (std::string& word : words) word = yaml_text(word);
    container += fmt::format("command: [{}]\n", fmt::join(words, ", "));
    container += "resources:\n  requests: {cpu: 500m, memory: 512Mi}\n";
  } else {
    container += worker_resources(options, job);
  }
  container += fmt::format(
      "volumeMounts:\n- {{name: data, mountPath: {}}}\n- {{name: recipe, mountPath: {}, readOnly: true}}\n"
      "- {{name: shared-memory, mountPath: /dev/shm}}\n",
      yaml_text(options.mount), kRecipeFolder);
  std::string item = indented(container, 2);
  item[0] = '-';
  return fmt::format(
      "terminationGracePeriodSeconds: {}\ncontainers:\n{}volumes:\n- name: data\n  persistentVolumeClaim: {{claimName: "
      "{}}}\n- name: recipe\n  configMap: {{name: {}}}\n- name: shared-memory\n  emptyDir: {{medium: Memory}}\n",
      options.grace, item, yaml_text(options.claim), yaml_text(job.name));
}

}  // namespace

std::string kubernetes_manifest(const JobOptions& options, const Job& job) {
  const std::string deadline = job.seconds ? fmt::format("    activeDeadlineSeconds: {}\n", *job.seconds) : "";
  return fmt::format(
      R"(# yoke train on {nodes} worker(s) with {ranks} rank(s) each. Start it with: kubectl apply -f THIS_FILE
#
# Needs Kubeflow's MPI operator (v2beta1) and an image with yoke, Open MPI and an SSH server. The launcher ends with code 7
# after a lost rank, and with 6 after SIGTERM, when the state is saved; it is then started again, at most {restarts} time(s), and
# continues from the newest whole checkpoint.
apiVersion: v1
kind: ConfigMap
{metadata}data:
  recipe.yaml: |
{recipe}---
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
{metadata}spec:
  slotsPerWorker: {ranks}
  mpiImplementation: OpenMPI
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: {restarts}
{deadline}  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
{launcher}    Worker:
      replicas: {nodes}
      restartPolicy: OnFailure
      template:
        spec:
{worker})",
      fmt::arg("nodes", options.nodes), fmt::arg("ranks", job.ranks_per_node), fmt::arg("restarts", options.restarts),
      fmt::arg("metadata", metadata(options, job)), fmt::arg("recipe", indented(resolved_yaml(job.loaded), 4)),
      fmt::arg("deadline", deadline), fmt::arg("launcher", indented(pod(options, job, true), 10)),
      fmt::arg("worker", indented(pod(options, job, false), 10)));
}

}  // namespace yoke
