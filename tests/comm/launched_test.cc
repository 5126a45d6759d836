// What launchers say through the environment.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "comm/launch.h"

namespace yoke {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<Launched> in(const Environment& environment) {
  return launched([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string refused(const Environment& environment) {
  try {
    in(environment);
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  return "";
}

TEST(Launched, ByNobody) {
  EXPECT_FALSE(in({}));
  EXPECT_FALSE(in({{"OMPI_COMM_WORLD_RANK", "0"}}));
  // The batch script of a Slurm job.
  EXPECT_FALSE(in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}}));
}

TEST(Launched, ByMpirun) {
  const Environment mpirun{{"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  EXPECT_EQ(in(mpirun), (Launched{"mpirun", 5, 8, 1, 4}));
  // Within a job of Slurm, mpirun is nearer.
  Environment both = mpirun;
  both.insert({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"PMIX_RANK", "5"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(in(both), (Launched{"mpirun", 5, 8, 1, 4}));
}

TEST(Launched, BySrun) {
  const auto srun = [](const std::string& list, const std::string& rank, const std::string& node,
                       const std::string& local, const std::string& ranks) {
    return in({{"PMIX_RANK", rank},
               {"SLURM_PROCID", rank},
               {"SLURM_STEP_NUM_TASKS", ranks},
               {"SLURM_STEP_TASKS_PER_NODE", list},
               {"SLURM_NODEID", node},
               {"SLURM_LOCALID", local}});
  };
  EXPECT_EQ(srun("4", "3", "0", "3", "4"), (Launched{"srun", 3, 4, 3, 4}));
  EXPECT_EQ(srun("4(x2),3", "5", "1", "1", "11"), (Launched{"srun", 5, 11, 1, 4}));
  EXPECT_EQ(srun("4(x2),3", "9", "2", "1", "11"), (Launched{"srun", 9, 11, 1, 3}));
  EXPECT_EQ(srun("1,2(x3),1", "5", "3", "0", "8"), (Launched{"srun", 5, 8, 0, 2}));
  EXPECT_EQ(in({{"PMI_RANK", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}}),
            (Launched{"srun", 1, 2, 0, 1}));
}

TEST(Launched, NonsenseIsRefused) {
  EXPECT_NE(refused({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "8"}}).find("OMPI_COMM_WORLD_RANK is 'x'"),
            std::string::npos);
  EXPECT_NE(refused({{"OMPI_COMM_WORLD_RANK", "8"}, {"OMPI_COMM_WORLD_SIZE", "8"}}).find("rank 8 of 8"),
            std::string::npos);
  EXPECT_NE(refused({{"OMPI_COMM_WORLD_RANK", "-1"}, {"OMPI_COMM_WORLD_SIZE", "8"}}), "");
  EXPECT_NE(refused({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}).find("--mpi=pmix"), std::string::npos);
}

}  // namespace
}  // namespace yoke
