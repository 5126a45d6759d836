// Devices and what a dry run needs to know of the one it stands for.
#pragma once

#include <string>
#include <vector>

namespace yoke {

enum class DeviceKind { cpu, cuda, dry };

/// Instruction sets that CPU kernels are compiled for, lowest first; chosen at run time.
enum class Isa {
  generic,  ///< whatever the compiler's default target is
  avx2,     ///< x86-64-v3: AVX2, FMA, F16C
  avx512,   ///< x86-64-v4 with AVX512-BF16
};

std::string name_of(Isa isa);

/// The instruction sets that this build holds and this processor runs, lowest first.
std::vector<Isa> available_isas();

/// True when matrix products of bf16 operands run in hardware here (AVX512-BF16 or better).
bool cpu_has_bf16();

/// What a device reaches at most; 0: unknown.
struct DeviceRates {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

class Device {
 public:
  /// The processor, with its best instruction set or a lower one. UserError when it does not run `isa`.
  static Device cpu(int threads);
  static Device cpu(int threads, Isa isa);
  /// Computes nothing; allocates and accounts as `like` would, and its clock runs at these rates.
  static Device dry(const Device& like, const DeviceRates& rates = {});
  /// A dry GPU of so many multiprocessors. Until there are kernels for it, operations allocate what is known of the
  /// libraries that will do their work; none of it depends on the processor that runs this.
  static Device dry_gpu(int multiprocessors);

  DeviceKind kind() const { return kind_; }
  bool is_dry() const { return kind_ == DeviceKind::dry; }
  /// The kind of device that sizes of workspaces follow: the modelled one on the dry device.
  DeviceKind modelled() const { return modelled_; }
  bool models_gpu() const { return modelled_ == DeviceKind::cuda; }
  Isa isa() const { return isa_; }
  int threads() const { return threads_; }  ///< of a GPU: multiprocessors
  const DeviceRates& rates() const { return rates_; }
  std::string str() const;  ///< "cpu (avx512, 2 threads)"

 private:
  DeviceKind kind_ = DeviceKind::cpu;
  DeviceKind modelled_ = DeviceKind::cpu;
  Isa isa_ = Isa::generic;
  int threads_ = 1;
  DeviceRates rates_;
};

/// Processor cores this process may use: affinity and cgroup quota respected.
int usable_cores();

/// Bytes of memory this process may use: physical memory and cgroup limit, less what is in use now and can't be dropped
/// (MemAvailable of the machine; of a cgroup its usage without inactive file pages). `root` stands for the file
/// system's root, so that tests can lay out machines of their own.
size_t available_memory(const std::string& root = "");

/// Bytes of memory this process has resident: now, and at most so far.
struct ResidentMemory {
  size_t now = 0;
  size_t peak = 0;
};
ResidentMemory resident_memory();

}  // namespace yoke
