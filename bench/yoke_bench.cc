// yoke's side of `make bench` and `make bench-parallel`: full optimizer steps of one model on random tokens, and the
// machine's measured product peak in the same process. Prints JSON lines {"name", "value", "unit"}. Started by mpirun
// it is one of several data-parallel ranks, of which the first one prints.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/launch.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"
#include "train/agreement.h"
#include "train/engine_plan.h"
#include "train/recipe_words.h"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;

/// Best GFLOP/s over products of some sizes, each repeated for `seconds`.
double product_peak(const Device& device, DType dtype, double seconds) {
  const MemoryBlock block(size_t{512} << 20);
  double best = 0;
  for (const int64_t side : {1024, 2048, 4096}) {
    Arena arena(block.data(), block.bytes());
    Stream stream;
    Context ctx{device, stream, arena};
    const Matmul product{.a = arena.allocate("a", dtype, {side, side}),
                         .b = arena.allocate("b", dtype, {side, side}),
                         .c = arena.allocate("c", dtype, {side, side}),
                         .transpose_b = true};
    fill(ctx, {.y = product.a, .value = 0.5f});
    fill(ctx, {.y = product.b, .value = 0.5f});
    const auto begin = Clock::now();
    while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
      const auto start = Clock::now();
      matmul(ctx, product);
      const double took = std::chrono::duration<double>(Clock::now() - start).count();
      best = std::max(best, 2e-9 * static_cast<double>(side * side * side) / took);
    }
  }
  return best;
}

Batch random_batch(const ModelConfig& config, int64_t rows, int64_t length, uint64_t seed) {
  Batch batch{.rows = rows, .length = length, .supervised = rows * length};
  const RandomStream random{seed, 0};
  for (int64_t i = 0; i < rows * length; ++i) {
    const auto token = [&](int64_t at) {
      return static_cast<int32_t>(random.word(static_cast<uint64_t>(at)) % static_cast<uint64_t>(config.vocabulary));
    };
    batch.tokens.push_back(token(i));
    batch.targets.push_back(token(i + 1));
    batch.positions.push_back(static_cast<int32_t>(i % length));
    batch.key_begin.push_back(0);
  }
  return batch;
}

void print(const std::string& name, double value, const std::string& unit) {
  fmt::print("{}\n", nlohmann::json{{"name", name}, {"value", value}, {"unit", unit}}.dump());
  std::fflush(stdout);
}

struct Options {
  ModelConfig model{.hidden = 768, .layers = 12, .heads = 12, .mlp = 2048};
  int64_t sequence = 512, batch = 2, micro_batches = 1;  // a rank's
  int warmup = 2, steps = 7, threads = usable_cores();
  std::string precision = "bf16", recompute = "none", moments = "fp32";
  int64_t loss_chunks = 0;  // 0: auto
  bool consume_gradients = false, profile = false;
  int zero = 0;
  std::string turns;
};

/// What one step took.
struct Timed {
  double seconds = 0;
  double waited = 0;  ///< for collectives
  double loss = 0;
};

/// Steps of one model on random tokens that no two ranks share.
class Steps {
 public:
  Steps(const Device& device, const ModelConfig& model, const EngineOptions& options, const Parallel& parallel)
      : model_(model),
        options_(options),
        parallel_(parallel),
        block_(plan_engine(device, model, options, {}, parallel.mesh().rank()).peak_bytes),
        arena_((block_.commit(device.threads()), block_.data()), block_.bytes()),
        ctx_{device, stream_, arena_},
        engine_(ctx_, model, options, parallel) {
    engine_.initialise(ctx_, 1);
  }

  Timed step() {
    const auto rank = static_cast<uint64_t>(parallel_.mesh().rank());
    std::vector<Batch> batches;
    for (int64_t m = 0; m < options_.micro_batches; ++m) {
      const uint64_t seed = (static_cast<uint64_t>(done_) << 32) + (rank << 16) + static_cast<uint64_t>(m);
      batches.push_back(random_batch(model_, options_.micro_batch, options_.sequence_length, seed));
    }
    const double waited = this->waited();
    const auto begin = Clock::now();
    const StepResult result =
        engine_.step(ctx_, batches, {.learning_rate = 3e-4, .weight_decay = 0.1, .clip_norm = 1, .step = ++done_});
    return {std::chrono::duration<double>(Clock::now() - begin).count(), this->waited() - waited, result.loss()};
  }

  /// Tokens of a step, of all ranks.
  double tokens() const {
    return static_cast<double>(options_.micro_batches * options_.tokens() * parallel_.mesh().sizes().data);
  }
  Stream& stream() { return stream_; }
  const Arena& arena() const { return arena_; }

 private:
  double waited() const {
    double sum = 0;
    for (size_t g = 0; g < kGroups; ++g) sum += parallel_[static_cast<Group>(g)].traffic().waited;
    return sum;
  }

  const ModelConfig& model_;
  EngineOptions options_;
  const Parallel& parallel_;
  MemoryBlock block_;
  Arena arena_;
  Stream stream_;
  Context ctx_;
  Engine engine_;
  int done_ = 0;
};

template <class E>
E word(const std::string& text, std::span<const Word<E>> words) {
  for (const Word<E>& w : words) {
    if (w.text == text) return w.value;
  }
  fail_usage("'{}' is no choice of yoke_bench; see docs/recipe.md for the words.", text);
}

DType type_of(const std::string& precision) {
  return precision == "bf16" ? DType::bf16 : precision == "fp16" ? DType::f16 : DType::f32;
}

EngineOptions engine_options(const Options& options, const MeshSizes& mesh) {
  const int64_t batch_tokens = options.batch * options.sequence;
  return {.compute = type_of(options.precision),
          .micro_batch = options.batch,
          .sequence_length = options.sequence,
          .micro_batches = options.micro_batches,
          .loss_chunk = options.loss_chunks == 0 ? 0 : (batch_tokens + options.loss_chunks - 1) / options.loss_chunks,
          .recompute = word<Recompute>(options.recompute, kRecomputeWords),
          .optimizer = {.moments = word<MomentsFormat>(options.moments, kMomentsWords)},
          .consume_gradients = options.consume_gradients,
          .mesh = mesh,
          .zero = options.zero};
}

void print_profile(const Stream& stream, int steps, double step_seconds) {
  for (const auto& [op, t] : stream.totals()) {
    fmt::print(stderr, "{:22} {:6} calls/step {:9.3f} ms/step {:6.1f} % {:8.1f} GFLOP/s {:6.1f} GB/s\n", op,
               t.calls / steps, 1e3 * t.seconds / steps, 100 * t.seconds / steps / step_seconds,
               1e-9 * t.flops / t.seconds, 1e-9 * t.bytes / t.seconds);
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// One step whenever a byte comes from the pipe, until its other end is closed.
void take_turns(const std::string& pipe, Steps& steps, bool says) {
  std::ifstream turns(pipe, std::ios::binary);
  if (!turns) fail_usage("--turns: {} can't be opened.", pipe);
  int count = 0;
  double seconds = 0;
  while (turns.get() != std::char_traits<char>::eof()) {
    const Timed timed = steps.step();
    // The first one makes everything that is kept.
    if (count++ == 0)
      steps.stream().clear_totals();
    else
      seconds += timed.seconds;
    if (!says) continue;
    print("step_seconds", timed.seconds, "s");
    print("waited_seconds", timed.waited, "s");
    print("tokens_per_second", steps.tokens() / timed.seconds, "tokens/s");
  }
  if (says && steps.stream().profiled && count > 1) print_profile(steps.stream(), count - 1, seconds / (count - 1));
}

void run(Options options, const Parallel& parallel) {
  ModelConfig& model = options.model;
  model.kv_heads = model.heads;
  model.head_dim = model.hidden / model.heads;
  model.max_positions = options.sequence;
  const Device device = Device::cpu(options.threads);
  const EngineOptions engine = engine_options(options, parallel.mesh().sizes());
  if (!options.turns.empty()) {
    Steps steps(device, model, engine, parallel);
    steps.stream().profiled = options.profile;
    return take_turns(fmt::format("{}.{}", options.turns, parallel.mesh().rank()), steps, parallel.first());
  }

  double peak = product_peak(device, engine.compute, 0.5);
  Steps steps(device, model, engine, parallel);
  std::vector<double> seconds, waited;
  double loss = 0;
  steps.stream().profiled = options.profile;
  for (int i = 0; i < options.warmup + options.steps; ++i) {
    if (i == options.warmup) steps.stream().clear_totals();
    const Timed timed = steps.step();
    loss = timed.loss;
    if (i < options.warmup) continue;
    seconds.push_back(timed.seconds);
    waited.push_back(timed.waited);
  }
  const size_t resident = resident_memory().peak;
  peak = std::max(peak, product_peak(device, engine.compute, 0.5));
  if (!parallel.first()) return;
  const double middle = median(seconds);
  const double gflops = 1e-9 * model.training_flops_per_token(options.sequence) * steps.tokens() / middle;
  print("parameters", static_cast<double>(model.parameters()), "");
  print("loss", loss, "nats");
  print("step_seconds", middle, "s");
  print("waited_seconds", median(waited), "s");
  print("tokens_per_second", steps.tokens() / middle, "tokens/s");
  print("gflops", gflops, "GFLOP/s");
  print("peak_gflops", peak * parallel.mesh().sizes().ranks(), "GFLOP/s");
  print("peak_share", gflops / peak / parallel.mesh().sizes().ranks(), "");
  print("arena_bytes", static_cast<double>(steps.arena().peak()), "B");
  print("resident_bytes", static_cast<double>(resident), "B");
  if (options.profile) print_profile(steps.stream(), options.steps, middle);
}

/// As `yoke train` does: ranks of mpirun share the cores, one part each.
int start(const Options& options, bool own_threads) {
  if (!launched()) {
    run(options, Parallel::self());
    return 0;
  }
  const auto mpi = start_mpi();
  try {
    const Parallel parallel = mpi->parallel({.data = mpi->ranks()});
    Options mine = options;
    const int share = share_cores(parallel.host(), RankNames(mpi->hosts()), mpi->rank(), usable_cores());
    if (!own_threads) mine.threads = share;
    run(mine, parallel);
  } catch (const UserError& error) {
    fmt::print(stderr, "yoke_bench: {}\n", error.what());
    mpi->abort(static_cast<int>(error.code()));
  }
  mpi->finish();
  return 0;
}

}  // namespace
}  // namespace yoke

int main(int argc, char** argv) {
  yoke::Options options;
  CLI::App app("Times optimizer steps of a LLaMA on random tokens.");
  app.add_option("--hidden", options.model.hidden);
  app.add_option("--layers", options.model.layers);
  app.add_option("--heads", options.model.heads);
  app.add_option("--mlp", options.model.mlp);
  options.model.vocabulary = 32000;
  app.add_option("--vocabulary", options.model.vocabulary);
  app.add_option("--sequence", options.sequence);
  app.add_option("--batch", options.batch);
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  app.add_option("--warmup", options.warmup);
  app.add_option("--steps", options.steps);
  app.add_option("--micro-batches", options.micro_batches, "of a step and rank");
  app.add_option("--zero", options.zero, "of several ranks")->check(CLI::Range(0, 3));
  CLI::Option* threads = app.add_option("--threads", options.threads, "of a rank");
  app.add_option("--turns", options.turns,
                 "named pipes PATH.0, PATH.1, ..., one a rank: a step for each byte, until they are closed");
  app.add_option("--recompute", options.recompute);
  app.add_option("--moments", options.moments);
  app.add_option("--loss-chunks", options.loss_chunks);
  app.add_flag("--consume-gradients", options.consume_gradients);
  app.add_flag("--profile", options.profile);
  CLI11_PARSE(app, argc, argv);
  try {
    return yoke::start(options, threads->count() > 0);
  } catch (const yoke::UserError& error) {
    fmt::print(stderr, "yoke_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
