// Ranks that yoke starts itself, through Open MPI's mpirun.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launch/hosts.h"
#include "launch/job_output.h"

namespace yoke {

struct MpirunJob {
  std::string mpirun;                ///< path
  std::vector<std::string> program;  ///< what each rank runs, with its arguments
  int ranks = 1;
  std::vector<HostSlots> hosts;  ///< empty: all ranks on this machine
  bool as_root = false;          ///< allows what mpirun refuses root without being told
};

/// Path of Open MPI's mpirun. UserError (usage) where PATH has none, or another MPI's, with what to install. `ranks`:
/// what it was wanted for.
std::string find_mpirun(int ranks);

/// The command line.
std::vector<std::string> mpirun_command(const MpirunJob& job);

/// Whether a process that mpirun starts anew must not see this variable: what launchers tell their ranks, and, for a
/// job on this machine, what batch systems say of their hosts. What people set of Open MPI stays.
bool is_launchers_variable(std::string_view name, bool on_this_machine);

/// How a job ended.
struct JobEnding {
  int code = 0;                      ///< mpirun's exit code; of a job whose rank was killed by a signal, 128 and that
  int interrupt = 0;                 ///< SIGINT, SIGTERM or SIGHUP that came while it ran, or 0
  bool abandoned = false;            ///< mpirun didn't end although the ranks had said that they do; code is nothing
  bool fault_said = false;           ///< a rank said why it ended
  bool unreachable = false;          ///< mpirun could not start anything on some host
  bool cut_off = false;              ///< mpirun lost its way to some host
  std::optional<KilledRank> killed;  ///< by a signal
};

/// Runs the job and waits for its end. The first SIGINT, SIGTERM or SIGHUP goes to all ranks as SIGUSR1, which they
/// take as a wish to save and stop; the second ends the job. Once a rank has said why it ends, mpirun has `patience`
/// seconds: it waits without end for a host that was cut off.
JobEnding run_job(const MpirunJob& job, double patience = 10);

}  // namespace yoke
