// How long the ranks of a pipeline really stand still, beside what their schedule says: started by mpirun with as many
// ranks as stages, one thread each.
//
//   mpirun -n 2 build/yoke_pipeline_bench [micro-batches [sequence length [steps]]]
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "base/log.h"
#include "base/random.h"
#include "comm/launch.h"
#include "train/agreement.h"
#include "train/engine_plan.h"
#include "train/pipeline_cost.h"

namespace yoke {
namespace {

/// SmolLM2-135M's sizes.
ModelConfig model() {
  return {.vocabulary = 49152,
          .hidden = 576,
          .layers = 30,
          .heads = 9,
          .kv_heads = 3,
          .head_dim = 64,
          .mlp = 1536,
          .max_positions = 8192,
          .tied_embeddings = true};
}

Batch random_batch(int64_t length, uint64_t seed) {
  Batch batch{.rows = 1, .length = length, .supervised = length};
  const RandomStream random{seed, 0};
  for (int64_t i = 0; i < length; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random.word(static_cast<uint64_t>(i)) % 49152));
    batch.positions.push_back(static_cast<int32_t>(i));
    batch.key_begin.push_back(0);
  }
  batch.targets = batch.tokens;
  return batch;
}

/// What each rank measures of its stages while the others do the same.
PipelineTimes measured_times(const Parallel& parallel, const Device& device, const EngineOptions& options) {
  PipelineTimes times = measured_pipeline_times(device, model(), options, parallel.mesh().place().pipeline);
  for (auto* values : {&times.forward, &times.backward_input, &times.backward_weight}) {
    parallel.host().all_reduce(*values, Reduction::sum);
  }
  return times;
}

double busy_seconds(const Stream& stream) {
  double sum = 0;
  for (const auto& [op, totals] : stream.totals()) sum += totals.seconds;
  return sum;
}

/// Mean over ranks of the share of the steps in which no operation ran: measured; as the dry run has it; and as the
/// schedule has it, with the durations that the stages' computations were measured to take.
void measure(const Parallel& parallel, const EngineOptions& options, const DeviceRates& rates, int steps) {
  const ModelConfig config = model();
  const Device device = Device::cpu(1);
  const int rank = parallel.mesh().rank();
  const EnginePlan plan = plan_engine(device, config, options, rates, rank);
  const PipelineTimeline timeline = pipeline_timeline_of(device, config, options, rates);
  const PipelineTimeline real =
      pipeline_timeline(pipeline_walk(options.schedule, options.pipeline()), measured_times(parallel, device, options));
  const MemoryBlock block(plan.peak_bytes);
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  Engine engine(ctx, config, options, parallel);
  engine.initialise(ctx, 1);
  std::vector<Batch> batches;
  for (int64_t m = 0; m < options.micro_batches; ++m) {
    batches.push_back(random_batch(options.sequence_length, static_cast<uint64_t>(m)));
  }
  engine.step(ctx, batches, {.learning_rate = 1e-4});
  stream.profiled = true;
  stream.clear_totals();
  parallel.host().barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < steps; ++step) engine.step(ctx, batches, {.learning_rate = 1e-4, .step = step + 2});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  double shares[] = {1 - busy_seconds(stream) / seconds, (timeline.seconds - timeline.busy(rank)) / plan.step_seconds,
                     (real.seconds - real.busy(rank)) / (seconds / steps)};
  parallel.host().all_reduce(shares, Reduction::sum);
  if (!parallel.first()) return;
  constexpr const char* kNames[] = {"1f1b", "interleaved", "zero-bubble"};
  fmt::print(
      "{:<12} {:>2} stages {:>3} micro-batches  {:>8.3f} s a step  idle {:5.1f} %  by its schedule {:5.1f} %, with "
      "measured stages {:5.1f} %\n",
      kNames[static_cast<size_t>(options.schedule)], timeline.shape.stages(), options.micro_batches, seconds / steps,
      100 * shares[0] / parallel.mesh().sizes().ranks(), 100 * shares[1] / parallel.mesh().sizes().ranks(),
      100 * shares[2] / parallel.mesh().sizes().ranks());
}

void run(Mpi& mpi, int64_t micro_batches, int64_t length, int steps) {
  const MeshSizes mesh{.pipeline = mpi.ranks()};
  const Parallel parallel = mpi.parallel(mesh);
  share_cores(parallel.host(), RankNames(mpi.hosts()), mpi.rank(), usable_cores());  // as `yoke train` does
  // The rates of one rank while all of them work.
  double measured[2];
  const DeviceRates own = measure_rates(Device::cpu(1), DType::bf16);
  measured[0] = own.flops_per_second;
  measured[1] = own.bytes_per_second;
  parallel.host().all_reduce(measured, Reduction::sum);
  const DeviceRates rates{.flops_per_second = measured[0] / mpi.ranks(), .bytes_per_second = measured[1] / mpi.ranks()};
  for (const auto& [schedule, pieces] :
       {std::pair(PipelineSchedule::one_f_one_b, 1), std::pair(PipelineSchedule::interleaved, 2),
        std::pair(PipelineSchedule::zero_bubble, 1)}) {
    measure(parallel,
            {.compute = DType::bf16,
             .sequence_length = length,
             .micro_batches = micro_batches,
             .evaluates = false,
             .mesh = mesh,
             .schedule = schedule,
             .virtual_stages = pieces},
            rates, steps);
  }
}

}  // namespace
}  // namespace yoke

int main(int argc, char** argv) {
  const auto argument = [&](int i, int initial) { return argc > i ? std::max(std::atoi(argv[i]), 1) : initial; };
  yoke::log::setup(false);
  const auto mpi = yoke::start_mpi();
  try {
    yoke::run(*mpi, argument(1, 8), argument(2, 256), argument(3, 3));
    mpi->finish();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    mpi->abort(1);
  }
}
