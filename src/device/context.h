// Context: what every operation gets as its first argument. There are no globals.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <typeindex>

#include "device/arena.h"
#include "device/device.h"

namespace yoke {

/// What an operation does at least: floating-point operations and bytes that have to move.
struct Cost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
};

/// Totals by operation.
struct OpTotals {
  int64_t calls = 0;
  double flops = 0;
  double bytes = 0;
  double seconds = 0;  ///< measured, only when the stream is profiled
};

/// An ordered queue of work. On the CPU work is done when launch returns; the dry device only accounts.
class Stream {
 public:
  void account(const char* op, const Cost& cost, double seconds) {
    OpTotals& totals = totals_[op];
    ++totals.calls;
    totals.flops += cost.flops;
    totals.bytes += cost.bytes_read + cost.bytes_written;
    totals.seconds += seconds;
  }
  /// The dry device's clock goes on by what the work takes at least at these rates.
  void advance(const DeviceRates& rates, const Cost& cost) {
    const double compute = rates.flops_per_second > 0 ? cost.flops / rates.flops_per_second : 0;
    const double memory =
        rates.bytes_per_second > 0 ? (cost.bytes_read + cost.bytes_written) / rates.bytes_per_second : 0;
    clock_ += compute > memory ? compute : memory;
  }
  double clock() const { return clock_; }
  /// Time that the dry device's stream stands still.
  void wait_until(double clock) { clock_ = std::max(clock_, clock); }
  /// Returns when all work launched so far is done.
  void synchronize() {}

  /// What a library keeps for work on this stream (handles, prepared primitives): made on first use, gone with the
  /// stream.
  template <class State>
  State& library_state() {
    std::shared_ptr<void>& slot = library_states_[typeid(State)];
    if (!slot) slot = std::make_shared<State>();
    return *static_cast<State*>(slot.get());
  }

  bool profiled = false;
  const std::map<std::string, OpTotals, std::less<>>& totals() const { return totals_; }
  void clear_totals() {
    totals_.clear();
    clock_ = 0;
  }

 private:
  double clock_ = 0;
  std::map<std::string, OpTotals, std::less<>> totals_;
  std::map<std::type_index, std::shared_ptr<void>> library_states_;
};

struct Context {
  const Device& device;
  Stream& stream;
  Arena& arena;  ///< also the operations' workspace, under mark and release
};

/// One kernel in every build: a missing definition is a link error that names the operation and the instruction set.
template <class Args>
struct KernelSet {
  using Function = void (*)(Context&, const Args&);
  Function generic;
  Function avx2;
  Function avx512;
};

/// Launches the kernel for the context's device; on the dry device only accounts.
template <class Args>
void launch(Context& ctx, const char* op, const KernelSet<Args>& kernels, const Args& args, const Cost& cost) {
  if (ctx.device.is_dry()) {
    ctx.stream.account(op, cost, 0);
    ctx.stream.advance(ctx.device.rates(), cost);
    return;
  }
  const auto kernel = ctx.device.isa() == Isa::avx512 ? kernels.avx512
                      : ctx.device.isa() == Isa::avx2 ? kernels.avx2
                                                      : kernels.generic;
  if (!ctx.stream.profiled) {
    kernel(ctx, args);
    ctx.stream.account(op, cost, 0);
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  kernel(ctx, args);
  ctx.stream.account(op, cost, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace yoke

// Declares the kernel `op` for every instruction set (each `<op>_cpu.cc` is compiled once per set, see
// cmake/isa.cmake) and gathers them in `op_kernels`. Use inside namespace yoke.
#if defined(__x86_64__)
#define YOKE_KERNELS(op, Args)    \
  namespace generic {             \
  void op(Context&, const Args&); \
  }                               \
  namespace avx2 {                \
  void op(Context&, const Args&); \
  }                               \
  namespace avx512 {              \
  void op(Context&, const Args&); \
  }                               \
  static constexpr KernelSet<Args> op##_kernels { generic::op, avx2::op, avx512::op }
#else
#define YOKE_KERNELS(op, Args)    \
  namespace generic {             \
  void op(Context&, const Args&); \
  }                               \
  static constexpr KernelSet<Args> op##_kernels { generic::op, generic::op, generic::op }
#endif

// The same for a kernel that a library dispatches by itself (`<op>_onednn.cc`, compiled once).
#define YOKE_LIBRARY_KERNEL(op, Args) \
  namespace library {                 \
  void op(Context&, const Args&);     \
  }                                   \
  static constexpr KernelSet<Args> op##_kernels { library::op, library::op, library::op }
