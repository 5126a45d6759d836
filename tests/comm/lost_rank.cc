// A rank of a job that goes wrong in the way that the first argument says; lost_rank_test starts it by mpirun.
// Arguments: what, folder of records, seconds of silence, seconds of patience with a rank that lives.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "tests/ranks.h"

namespace yoke {
namespace {

[[noreturn]] void loop_forever() {
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
}

void reduce(Context& ctx, Communicator& comm, int times) {
  std::vector<float> x(1000, 1.0f);
  for (int i = 0; i < times; ++i) {
    comm.run(
        ctx,
        {.kind = CollectiveKind::all_reduce, .input = {x.data(), DType::f32, {1000}}, .what = "gradients", .layer = 3});
  }
}

/// Rank 1 does `wrong` after five all-reduces, in place of the sixth.
template <class Wrong>
void data_parallel(Mpi& mpi, const Wrong& wrong) {
  const Parallel parallel = mpi.parallel({.data = mpi.ranks()});
  test::OneThread on;
  reduce(on.ctx, parallel[Group::data], 5);
  if (mpi.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(2));  // others hear of the five meanwhile
    wrong();
  }
  reduce(on.ctx, parallel[Group::data], 1);
}

/// Everybody waits for the rank after it, and the last one for nobody.
void chain(Mpi& mpi, bool circle) {
  const Parallel parallel = mpi.parallel({.pipeline = mpi.ranks()});
  test::OneThread on;
  const int last = mpi.ranks() - 1;
  if (mpi.rank() == last && !circle) loop_forever();
  std::vector<float> x(10);
  parallel[Group::pipeline].run(on.ctx, {.kind = CollectiveKind::receive,
                                         .output = {x.data(), DType::f32, {10}},
                                         .peer = mpi.rank() == last ? 0 : mpi.rank() + 1,
                                         .what = "output gradients",
                                         .layer = 2});
}

void run(Mpi& mpi, const std::string& what) {
  if (what == "stop") {
    data_parallel(mpi, [] { raise(SIGSTOP); });
  } else if (what == "loop") {
    data_parallel(mpi, loop_forever);
  } else if (what == "kill") {
    data_parallel(mpi, [] { raise(SIGKILL); });
  } else if (what == "many then kill") {
    const Parallel parallel = mpi.parallel({.data = mpi.ranks()});
    test::OneThread on;
    reduce(on.ctx, parallel[Group::data], 300);
    parallel.host().barrier();
    if (mpi.rank() == 1) raise(SIGKILL);
    reduce(on.ctx, parallel[Group::data], 1);
  } else if (what == "others compute") {
    if (mpi.rank() == 1) raise(SIGSTOP);
    loop_forever();
  } else if (what == "throw") {
    data_parallel(mpi, [] { fail_file("weights.safetensors: no such file"); });
  } else if (what == "leave") {
    data_parallel(mpi, [] { std::exit(0); });
  } else if (what == "chain" || what == "circle") {
    chain(mpi, what == "circle");
  } else if (what == "slow") {
    // Longer than a silence, shorter than the patience: nothing is wrong.
    data_parallel(mpi, [] { std::this_thread::sleep_for(std::chrono::seconds(4)); });
  } else {
    fail_usage("what is {}?", what);
  }
}

}  // namespace
}  // namespace yoke

int main(int, char** argv) {
  yoke::log::setup(false);
  std::unique_ptr<yoke::Mpi> mpi;
  try {
    mpi = yoke::start_mpi({.silence = std::stod(argv[3]), .timeout = std::stod(argv[4]), .records = argv[2]});
    yoke::run(*mpi, argv[1]);
    mpi->finish();
    return 0;
  } catch (const yoke::UserError& e) {
    std::fprintf(stderr, "yoke: %s\n", e.what());
    if (mpi) mpi->abort(static_cast<int>(e.code()));
    return static_cast<int>(e.code());
  }
}
