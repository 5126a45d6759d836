#include "device/device.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "device/deprivation.h"

namespace yoke {

std::string name_of(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return "generic";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "?";
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::generic};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("f16c");
  if (avx2) isas.push_back(Isa::avx2);
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512bf16")) {
    isas.push_back(Isa::avx512);
  }
#endif
  return isas;
}

bool cpu_has_bf16() {
  const auto isas = available_isas();
  return std::find(isas.begin(), isas.end(), Isa::avx512) != isas.end();
}

Device Device::cpu(int threads) { return cpu(threads, available_isas().back()); }

Device Device::cpu(int threads, Isa isa) {
  const auto isas = available_isas();
  if (std::find(isas.begin(), isas.end(), isa) == isas.end()) {
    fail_usage("This processor does not run the instruction set {}; the best here is {}.", name_of(isa),
               name_of(isas.back()));
  }
  if (threads < 1) fail_usage("threads: found {}, at least 1 is needed.", threads);
  Device device;
  device.isa_ = isa;
  device.threads_ = threads;
  return device;
}

Device Device::dry(const Device& like, const DeviceRates& rates) {
  Device device = like;
  device.kind_ = DeviceKind::dry;
  device.modelled_ = like.modelled_;
  device.rates_ = rates;
  return device;
}

Device Device::dry_gpu(int multiprocessors) {
  YOKE_ASSERT(multiprocessors > 0);
  Device device;
  device.kind_ = DeviceKind::dry;
  device.modelled_ = DeviceKind::cuda;
  device.threads_ = multiprocessors;
  return device;
}

std::string Device::str() const {
  if (models_gpu()) return fmt::format("dry gpu ({} multiprocessors)", threads_);
  const std::string cpu = fmt::format("cpu ({}, {} thread{})", name_of(isa_), threads_, threads_ == 1 ? "" : "s");
  return is_dry() ? "dry " + cpu : cpu;
}

namespace {

/// The number in a cgroup file, or -1 for "max" and for files that are not there.
double cgroup_number(const std::string& path, int field = 0) {
  std::ifstream in(path);
  std::string word;
  for (int i = 0; i <= field; ++i) {
    if (!(in >> word)) return -1;
  }
  if (word == "max") return -1;
  std::istringstream number(word);
  double value = -1;
  number >> value;
  return number ? value : -1;
}

/// The number behind `key` in a file of lines "key number", at least 0; 0 when it isn't there.
double field(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string word;
    double number = 0;
    if (fields >> word >> number && word == key) return std::max(0.0, number);
  }
  return 0;
}

/// The path of this process's cgroup (version 2) below /sys/fs/cgroup; "" or "/a/b".
std::string cgroup_path(const std::string& root) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("0::/", 0) == 0) return line.size() == 4 ? "" : line.substr(3);
  }
  return "";
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores =
      sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const std::string file = "/sys/fs/cgroup" + cgroup_path("") + "/cpu.max";
  const double quota = cgroup_number(file, 0), period = cgroup_number(file, 1);
  if (quota > 0 && period > 0) cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(quota / period))));
  return std::max(1, cores);
}

size_t available_memory(const std::string& root) {
  double available = field(root + "/proc/meminfo", "MemAvailable:") * 1024;
  const auto respect = [&](const std::string& group, const char* limit_file, const char* used_file,
                           std::string_view cache) {
    const double limit = cgroup_number(group + limit_file);
    if (limit < 0) return;
    // Files that were read count as used, but the kernel drops what of them was not read lately before it kills.
    const double used = cgroup_number(group + used_file) - field(group + "/memory.stat", cache);
    available = std::min(available, std::max(0.0, limit - std::max(0.0, used)));
  };
  // Version 2: the limit of every group above counts as well.
  const std::string cgroups = root + "/sys/fs/cgroup";
  for (std::string path = cgroup_path(root);; path = path.substr(0, path.rfind('/'))) {
    respect(cgroups + path, "/memory.max", "/memory.current", "inactive_file");
    if (path.empty()) break;
  }
  respect(cgroups + "/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file");  // version 1
  return static_cast<size_t>(available);
}

ResidentMemory resident_memory() {
  return {.now = static_cast<size_t>(field("/proc/self/status", "VmRSS:") * 1024),
          .peak = static_cast<size_t>(field("/proc/self/status", "VmHWM:") * 1024)};
}

Deprivation deprivation(const std::string& root) {
  Deprivation found;
  std::error_code failure;
  for (const auto& task : std::filesystem::directory_iterator(root + "/proc/self/task", failure)) {
    // Nanoseconds on a core, nanoseconds ready for one.
    found.queued += std::max(0.0, cgroup_number(task.path().string() + "/schedstat", 1)) * 1e-9;
  }
  for (std::string path = cgroup_path(root);; path = path.substr(0, path.rfind('/'))) {
    found.throttled = std::max(found.throttled, field(root + "/sys/fs/cgroup" + path + "/cpu.stat", "throttled_usec"));
    if (path.empty()) break;
  }
  found.throttled *= 1e-6;
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) found.faults = static_cast<double>(usage.ru_majflt);
  return found;
}

}  // namespace yoke
