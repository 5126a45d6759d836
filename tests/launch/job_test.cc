// Files of Slurm and Kubernetes: read back by what reads them there, a shell and a YAML parser.
#include "launch/job.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;

class JobFiles : public ::testing::Test {
 protected:
  JobFiles() { recipe("tensor: 2"); }

  void recipe(const std::string& parallel) {
    write_file(folder_ / "My Recipe_2.yaml",
               "model: {path: m, init: random}\ndata: {train: 'it''s/*.txt'}\ntrain: {steps: 7}\nparallel: {" +
                   parallel + "}\n");
  }
  JobOptions options() const {
    return {.recipe = (folder_ / "My Recipe_2.yaml").string(), .yoke = "/opt/yo ke", .folder = "/data/it's"};
  }
  static std::string refusal(const JobOptions& options) {
    try {
      check_job(options);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "";
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  test::Scratch folder_;
};

TEST_F(JobFiles, TimesInEveryForm) {
  EXPECT_EQ(parse_time("90"), 5400);
  EXPECT_EQ(parse_time("1:30"), 90);
  EXPECT_EQ(parse_time("24:00:00"), 86400);
  EXPECT_EQ(parse_time("2-12"), 216000);
  EXPECT_EQ(parse_time("2-12:30"), 217800);
  EXPECT_EQ(parse_time("2-12:30:15"), 217815);
  for (const char* text : {"", "x", "1:2:3:4", "-1", "1:", ":1", "1d", "0", "1-", "1-2:3:4:5", "99999999999"}) {
    EXPECT_THROW(parse_time(text), UserError) << text;
  }
}

TEST_F(JobFiles, RanksFollowFromTheRecipeOrMustFitIt) {
  EXPECT_EQ(check_job(options()).ranks_per_node, 2);
  JobOptions two = options();
  two.nodes = 2;
  EXPECT_EQ(check_job(two).ranks_per_node, 1);
  two.ranks_per_node = 8;
  EXPECT_EQ(check_job(two).ranks_per_node, 8);
  two.ranks_per_node = {};
  two.gpus = 4;
  EXPECT_EQ(check_job(two).ranks_per_node, 4);
  two.gpus = {};
  two.nodes = 3;
  EXPECT_TRUE(has(refusal(two), "--ranks-per-node")) << refusal(two);
  two.ranks_per_node = 1;
  EXPECT_TRUE(has(refusal(two), "start 2 or 4")) << refusal(two);
}

TEST_F(JobFiles, WhatMakesNoSenseIsRefused) {
  const auto refused = [&](auto change) {
    JobOptions changed = options();
    change(changed);
    EXPECT_NE(refusal(changed), "");
  };
  refused([](JobOptions& o) { o.nodes = 0; });
  refused([](JobOptions& o) { o.restarts = -1; });
  refused([](JobOptions& o) { o.time = "1:00", o.grace = 60; });
  refused([](JobOptions& o) { o.partition = "a\n#SBATCH --wrap=x"; });
  refused([](JobOptions& o) { o.image = "a: b"; });
  refused([](JobOptions& o) { o.recipe = "/none"; });
  refused([](JobOptions& o) { o.overrides = {{"train.steps", "no"}}; });
}

TEST_F(JobFiles, SlurmScriptIsOneThatShellsRead) {
  JobOptions o = options();
  o.nodes = 2;
  o.cores = 3;
  o.gpus = 1;
  o.time = "1-00:00:00";
  o.partition = "long";
  o.overrides = {{"train.learning_rate", "1e-3"}, {"data.train", "it's $HOME/*.txt"}};
  const std::string script = slurm_script(o, check_job(o));
  for (const char* line :
       {"\n#SBATCH --job-name=my-recipe-2\n", "\n#SBATCH --nodes=2\n", "\n#SBATCH --requeue\n",
        "\n#SBATCH --ntasks-per-node=1\n", "\n#SBATCH --cpus-per-task=3\n", "\n#SBATCH --gpus-per-node=1\n",
        "\n#SBATCH --time=1-00:00:00\n", "\n#SBATCH --partition=long\n", "\n#SBATCH --signal=TERM@120\n",
        "\n#SBATCH --open-mode=append\n", "\n#SBATCH --chdir=\"/data/it's\"\n"}) {
    EXPECT_TRUE(has(script, line)) << line << script;
  }
  // sbatch reads directives up to the first command.
  EXPECT_LT(script.rfind("#SBATCH"), script.find("\ncd "));
  write_file(folder_ / "job.sh", script);
  const std::string path = "'" + (folder_ / "job.sh").string() + "'";
  EXPECT_EQ(std::system(("bash -n " + path).c_str()), 0);
}

/// The script itself, with stand-ins for Slurm's two commands that note their words.
TEST_F(JobFiles, SlurmScriptQueuesAgainWhatContinuesAndNothingElse) {
  fs::create_directory(folder_ / "bin");
  const auto program = [&](const std::string& name, const std::string& text) {
    write_file(folder_ / "bin" / name, "#!/bin/bash\n" + text);
    fs::permissions(folder_ / "bin" / name, fs::perms::owner_all);
  };
  program("srun", "printf '%s\\n' \"$@\" > \"$NOTES/srun\"\nexit \"$CODE\"\n");
  program("scontrol", "echo \"$@\" > \"$NOTES/scontrol\"\n");
  JobOptions o = options();
  o.restarts = 2;
  o.overrides = {{"data.train", "it's $HOME/*.txt"}};
  write_file(folder_ / "job.sh", slurm_script(o, check_job(o)));
  const auto run = [&](int code, int restarts) {
    fs::remove(folder_ / "scontrol");
    const std::string at = folder_.path().string();
    const int status = std::system(fmt::format("PATH='{0}/bin':$PATH NOTES='{0}' CODE={1} SLURM_JOB_ID=17 SLURM_JOB_"
                                               "NODELIST=n SLURM_RESTART_COUNT={2} bash '{0}/job.sh' > '{0}/out' 2>&1",
                                               at, code, restarts)
                                       .c_str());
    EXPECT_EQ(WEXITSTATUS(status), code);
    return fs::exists(folder_ / "scontrol") ? read_file(folder_ / "scontrol") : "";
  };
  for (const int code : {6, 7, 137, 143}) {
    EXPECT_EQ(run(code, 0), "requeue 17\n");
    EXPECT_EQ(run(code, 1), "requeue 17\n");
    EXPECT_EQ(run(code, 2), "") << read_file(folder_ / "out");
  }
  for (const int code : {0, 1, 2, 3, 4, 5}) EXPECT_EQ(run(code, 0), "") << code;
  EXPECT_EQ(read_file(folder_ / "srun"),
            fmt::format("--mpi=pmix\n--cpu-bind=none\n--kill-on-bad-exit=1\n/opt/yo ke\ntrain\n{}\n--resume\nauto\n"
                        "--data.train=it's $HOME/*.txt\n",
                        o.recipe));
}

TEST_F(JobFiles, KubernetesManifestHasWhatTheOperatorReads) {
  recipe("tensor: 2, data: 4");
  JobOptions o = options();
  o.nodes = 4;
  o.yoke = "yoke";
  o.folder = o.mount;
  o.image = "registry.example/yoke:1";
  o.claim = "runs";
  o.name_space = "training";
  o.cores = 3;
  o.memory = "64Gi";
  o.time = "2:00:00";
  o.overrides = {{"train.steps", "9"}};
  const std::vector<YAML::Node> all = YAML::LoadAll(kubernetes_manifest(o, check_job(o)));
  ASSERT_EQ(all.size(), 2u);
  const YAML::Node config = all[0], job = all[1];
  EXPECT_EQ(config["apiVersion"].as<std::string>(), "v1");
  EXPECT_EQ(config["kind"].as<std::string>(), "ConfigMap");
  EXPECT_EQ(job["apiVersion"].as<std::string>(), "kubeflow.org/v2beta1");
  EXPECT_EQ(job["kind"].as<std::string>(), "MPIJob");
  for (const YAML::Node& item : all) {
    EXPECT_EQ(item["metadata"]["name"].as<std::string>(), "my-recipe-2");
    EXPECT_EQ(item["metadata"]["namespace"].as<std::string>(), "training");
  }
  // The recipe in it is the recipe, with what was typed.
  const LoadedRecipe inside = parse_recipe(config["data"]["recipe.yaml"].as<std::string>(), "inside.yaml");
  const Recipe want = load_recipe(o.recipe, o.overrides).recipe;
  EXPECT_TRUE(inside.recipe == want);
  EXPECT_EQ(inside.recipe.train.steps, 9);

  const YAML::Node spec = job["spec"], roles = spec["mpiReplicaSpecs"];
  EXPECT_EQ(spec["slotsPerWorker"].as<int>(), 2);
  EXPECT_EQ(spec["mpiImplementation"].as<std::string>(), "OpenMPI");
  EXPECT_EQ(spec["runPolicy"]["backoffLimit"].as<int>(), 3);
  EXPECT_EQ(spec["runPolicy"]["activeDeadlineSeconds"].as<int>(), 7200);
  EXPECT_EQ(roles["Launcher"]["replicas"].as<int>(), 1);
  EXPECT_EQ(roles["Worker"]["replicas"].as<int>(), 4);
  for (const char* role : {"Launcher", "Worker"}) {
    EXPECT_EQ(roles[role]["restartPolicy"].as<std::string>(), "OnFailure");
    const YAML::Node pod = roles[role]["template"]["spec"];
    EXPECT_EQ(pod["terminationGracePeriodSeconds"].as<int>(), 120);
    EXPECT_EQ(pod["volumes"][0]["persistentVolumeClaim"]["claimName"].as<std::string>(), "runs");
    EXPECT_EQ(pod["volumes"][1]["configMap"]["name"].as<std::string>(), "my-recipe-2");
    ASSERT_EQ(pod["containers"].size(), 1u);
    const YAML::Node container = pod["containers"][0];
    EXPECT_EQ(container["image"].as<std::string>(), "registry.example/yoke:1");
    EXPECT_EQ(container["workingDir"].as<std::string>(), "/data");
    EXPECT_EQ(container["volumeMounts"][0]["mountPath"].as<std::string>(), "/data");
    for (size_t i = 0; i < pod["volumes"].size(); ++i) {
      EXPECT_EQ(container["volumeMounts"][i]["name"].as<std::string>(), pod["volumes"][i]["name"].as<std::string>());
    }
  }
  EXPECT_EQ(roles["Launcher"]["template"]["spec"]["containers"][0]["command"].as<std::vector<std::string>>(),
            (std::vector<std::string>{"yoke", "train", "/etc/yoke/recipe.yaml", "--resume=auto",
                                      "--hostfile=/etc/mpi/hostfile"}));
  const YAML::Node limits = roles["Worker"]["template"]["spec"]["containers"][0]["resources"]["limits"];
  EXPECT_EQ(limits["cpu"].as<int>(), 6);
  EXPECT_EQ(limits["memory"].as<std::string>(), "64Gi");
}

}  // namespace
}  // namespace yoke
