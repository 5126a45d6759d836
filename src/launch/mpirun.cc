#include "launch/mpirun.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace yoke {

namespace {

namespace fs = std::filesystem;

/// Standard output of a program, at most a page of it; "" where it can't be run.
std::string output_of(const std::string& program, const char* argument) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::execl(program.c_str(), program.c_str(), argument, nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = ::read(ends[0], buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (text.size() < buffer.size()) text.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(ends[0]);
  if (pid > 0) ::waitpid(pid, nullptr, 0);
  return text;
}

/// Signals wait in a file descriptor.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set_, signal);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
    fd_ = ::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue() {
    ::close(fd_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  int fd() const { return fd_; }
  const sigset_t& before() const { return before_; }
  /// The next one, or 0.
  int next() const {
    signalfd_siginfo info{};
    return ::read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_{}, before_{};
  int fd_ = -1;
};

/// The environment of mpirun, in which nothing of an earlier launcher is left.
std::vector<std::string> clean_environment(bool on_this_machine) {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (!is_launchers_variable(text.substr(0, text.find('=')), on_this_machine)) kept.emplace_back(text);
  }
  return kept;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

pid_t start(const MpirunJob& job, const sigset_t& signals, int errors) {
  std::vector<std::string> words = mpirun_command(job), variables = clean_environment(job.hosts.empty());
  const std::vector<char*> argv = pointers(words), environment = pointers(variables);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw UserError(ExitCode::bug, fmt::format("mpirun can't be started: {}.", std::strerror(errno)));
  }
  if (pid > 0) return pid;
  // A group of its own: a terminal's Ctrl-C must reach this process alone, since mpirun's answer to it is to kill.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  ::dup2(errors, STDERR_FILENO);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::execve(argv[0], argv.data(), environment.data());
  ::_exit(127);
}

}  // namespace

std::string find_mpirun(int ranks) {
  const char* path = std::getenv("PATH");
  const std::string folders = path == nullptr ? "" : path;
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string file = folders.substr(begin, end - begin) + "/mpirun";
    begin = end + 1;
    if (file[0] != '/' || ::access(file.c_str(), X_OK) != 0) continue;
    if (output_of(file, "--version").find("Open MPI") != std::string::npos) return file;
    fail_usage(
        "{} is not Open MPI's, which yoke is built with; put Open MPI's first in PATH, or start yoke with a "
        "launcher that fits it, such as srun --mpi=pmix.",
        file);
  }
  fail_usage(
      "parallel asks for {} ranks, which yoke starts through mpirun, but PATH has no mpirun. Install Open MPI "
      "(Debian: apt-get install openmpi-bin), or set the sizes of parallel to 1.",
      ranks);
}

std::vector<std::string> mpirun_command(const MpirunJob& job) {
  std::vector<std::string> words{job.mpirun, "-n", std::to_string(job.ranks)};
  if (job.as_root) words.emplace_back("--allow-run-as-root");
  // More ranks than cores are slow, but legal. Ranks bind themselves to their part of a host's cores.
  for (const char* word : {"--oversubscribe", "--bind-to", "none"}) words.emplace_back(word);
  if (!job.hosts.empty()) {
    std::string list;
    for (const HostSlots& host : job.hosts) {
      list += fmt::format("{}{}:{}", list.empty() ? "" : ",", host.host, host.ranks);
    }
    for (const std::string& word : {std::string("--host"), list}) words.push_back(word);
    // A daemon that lost its way to mpirun ends after about half a minute, not ten.
    const char* const limits[][2] = {
        {"oob_tcp_keepalive_time", "10"}, {"oob_tcp_keepalive_intvl", "5"}, {"oob_tcp_keepalive_probes", "3"}};
    for (const auto& [name, value] : limits) {
      for (const char* word : {"--mca", name, value}) words.emplace_back(word);
    }
  }
  words.insert(words.end(), job.program.begin(), job.program.end());
  return words;
}

bool is_launchers_variable(std::string_view name, bool on_this_machine) {
  constexpr std::array<std::string_view, 10> kRanks{
      "PMIX_",         "PMI_",          "OMPI_COMM_WORLD_",  "OMPI_MCA_orte_ess_", "OMPI_MCA_ess_base_",
      "OMPI_MCA_pmix", "OMPI_APP_CTX_", "OMPI_MCA_initial_", "OMPI_FILE_LOCATION", "OMPI_MCA_orte_hnp_"};
  constexpr std::array<std::string_view, 7> kMore{"OMPI_UNIVERSE_SIZE",
                                                  "OMPI_NUM_APP_CTX",
                                                  "OMPI_FIRST_RANKS",
                                                  "OMPI_COMMAND",
                                                  "OMPI_ARGV",
                                                  "OMPI_MCA_orte_app_num",
                                                  "OMPI_MCA_orte_local_daemon_uri"};
  constexpr std::array<std::string_view, 4> kBatchSystems{"SLURM_", "PBS_", "LSB_", "LS_SUBCWD"};
  const auto begins = [&](const auto& list) {
    for (const std::string_view begin : list) {
      if (name.starts_with(begin)) return true;
    }
    return false;
  };
  return begins(kRanks) || begins(kMore) || (on_this_machine && (begins(kBatchSystems) || name == "PE_HOSTFILE"));
}

JobEnding run_job(const MpirunJob& job, double patience) {
  using Clock = std::chrono::steady_clock;
  const SignalQueue signals;
  std::fflush(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw UserError(ExitCode::bug, "a pipe can't be made.");
  const pid_t pid = start(job, signals.before(), ends[1]);
  ::close(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  JobOutput output(STDERR_FILENO);
  JobEnding ending;
  std::optional<Clock::time_point> ending_since;
  std::array<char, 65536> buffer;
  int wishes = 0, status = 0;
  for (bool running = true; running;) {
    std::array<pollfd, 2> ready{{{signals.fd(), POLLIN, 0}, {ends[0], POLLIN, 0}}};
    ::poll(ready.data(), ready.size(), 1000);
    while (const int signal = signals.next()) {
      if (signal == SIGCHLD) continue;
      if (ending.interrupt == 0) ending.interrupt = signal;
      ::kill(pid, ++wishes == 1 ? SIGUSR1 : wishes == 2 ? SIGTERM : SIGKILL);
    }
    running = ::waitpid(pid, &status, WNOHANG) != pid;
    for (ssize_t n; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
      output.add({buffer.data(), static_cast<size_t>(n)});
    }
    if (!output.is_ending()) continue;
    if (!ending_since) ending_since = Clock::now();
    if (running && std::chrono::duration<double>(Clock::now() - *ending_since).count() > patience) {
      ending.abandoned = true;
      ::kill(pid, SIGKILL);
    }
  }
  ::close(ends[0]);
  output.finish();
  ending.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ending.fault_said = output.fault_said();
  ending.unreachable = output.unreachable();
  ending.cut_off = output.cut_off();
  ending.killed = output.killed();
  return ending;
}

}  // namespace yoke
