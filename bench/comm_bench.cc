// How fast collectives move data between ranks on this machine, beside memcpy:
//   mpirun -n 2 build/comm_bench [MB ...]
// GB/s are bytes of the whole tensor by seconds, the best of several tries; fp32.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "comm/launch.h"

namespace yoke {
namespace {

constexpr int kTries = 5;

/// Seconds of the slowest rank in the best try.
double seconds(HostGroup& host, const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < kTries; ++i) {
    host.barrier();
    const auto begin = std::chrono::steady_clock::now();
    work();
    double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    host.all_reduce({&taken, 1}, Reduction::max);
    best = std::min(best, taken);
  }
  return best;
}

void bench(const Parallel& parallel, int64_t megabytes) {
  const Device device = Device::cpu(1);
  Stream stream;
  Arena counting;
  Context ctx{device, stream, counting};
  Communicator& comm = parallel[Group::data];
  const int64_t piece = megabytes * 1000000 / 4 / comm.size(), all = piece * comm.size();
  std::vector<float> x(static_cast<size_t>(all), 0.0f), y(x.size(), 0.0f);
  const TensorView input(x.data(), DType::f32, {all}), whole(y.data(), DType::f32, {all});
  const TensorView part(y.data(), DType::f32, {piece}),
      own = rows(reshape(whole, {all, 1}), comm.rank() * piece, piece);
  const auto show = [&](const char* name, const std::function<void()>& work) {
    const double s = seconds(parallel.host(), work);
    if (parallel.first())
      std::printf("%6ld MB  %-15s %9.3f ms  %6.2f GB/s\n", megabytes, name, s * 1e3,
                  4e-9 * static_cast<double>(all) / s);
  };
  show("memcpy", [&] { std::memcpy(y.data(), x.data(), input.bytes()); });
  show("all_reduce", [&] { comm.run(ctx, {.kind = CollectiveKind::all_reduce, .input = input}); });
  show("reduce_scatter",
       [&] { comm.run(ctx, {.kind = CollectiveKind::reduce_scatter, .input = input, .output = part}); });
  show("all_gather", [&] { comm.run(ctx, {.kind = CollectiveKind::all_gather, .input = own, .output = whole}); });
}

}  // namespace
}  // namespace yoke

int main(int argc, char** argv) {
  const auto mpi = yoke::start_mpi();
  {
    const yoke::Parallel parallel = mpi->parallel({.data = mpi->ranks()});
    std::vector<int64_t> sizes{1, 64, 512};
    if (argc > 1) sizes.clear();
    for (int i = 1; i < argc; ++i) sizes.push_back(std::atol(argv[i]));
    for (int64_t megabytes : sizes) yoke::bench(parallel, megabytes);
  }
  mpi->finish();
  return 0;
}
