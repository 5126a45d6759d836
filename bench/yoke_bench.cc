// yoke's side of `make bench`: full optimizer steps of one model on random tokens, and the machine's measured product
// peak in the same process. Prints JSON lines {"name", "value", "unit"}.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"
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
}

struct Options {
  ModelConfig model{.hidden = 768, .layers = 12, .heads = 12, .mlp = 2048};
  int64_t sequence = 512, batch = 2;
  int warmup = 2, steps = 7, threads = usable_cores();
  std::string precision = "bf16", recompute = "none", moments = "fp32";
  int64_t loss_chunks = 0;  // 0: auto
  bool consume_gradients = false, profile = false;
};

template <class E>
E word(const std::string& text, std::span<const Word<E>> words) {
  for (const Word<E>& w : words) {
    if (w.text == text) return w.value;
  }
  fail_usage("'{}' is no choice of yoke_bench; see docs/recipe.md for the words.", text);
}

void run(Options options) {
  ModelConfig& model = options.model;
  model.kv_heads = model.heads;
  model.head_dim = model.hidden / model.heads;
  model.max_positions = options.sequence;
  const DType compute = options.precision == "bf16"   ? DType::bf16
                        : options.precision == "fp16" ? DType::f16
                                                      : DType::f32;
  const Device device = Device::cpu(options.threads);
  double peak = product_peak(device, compute, 0.5);

  const int64_t batch_tokens = options.batch * options.sequence;
  const EngineOptions engine_options{
      .compute = compute,
      .micro_batch = options.batch,
      .sequence_length = options.sequence,
      .loss_chunk = options.loss_chunks == 0 ? 0 : (batch_tokens + options.loss_chunks - 1) / options.loss_chunks,
      .recompute = word<Recompute>(options.recompute, kRecomputeWords),
      .optimizer = {.moments = word<MomentsFormat>(options.moments, kMomentsWords)},
      .consume_gradients = options.consume_gradients};
  const EnginePlan plan = plan_engine(device, model, engine_options);
  const MemoryBlock block(plan.peak_bytes);
  block.commit(options.threads);
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  Engine engine(ctx, model, engine_options);
  engine.initialise(ctx, 1);
  std::vector<double> seconds;
  double loss = 0;
  stream.profiled = options.profile;
  for (int i = 0; i < options.warmup + options.steps; ++i) {
    const Batch batch = random_batch(model, options.batch, options.sequence, static_cast<uint64_t>(i));
    if (i == options.warmup) stream.clear_totals();
    const auto begin = Clock::now();
    loss =
        engine.step(ctx, {{batch}}, {.learning_rate = 3e-4, .weight_decay = 0.1, .clip_norm = 1, .step = i + 1}).loss();
    if (i >= options.warmup) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  const size_t resident = resident_memory().peak;
  peak = std::max(peak, product_peak(device, compute, 0.5));
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(options.batch * options.sequence);
  const double gflops = 1e-9 * model.training_flops_per_token(options.sequence) * tokens / median;
  print("parameters", static_cast<double>(model.parameters()), "");
  print("loss", loss, "nats");
  print("step_seconds", median, "s");
  print("tokens_per_second", tokens / median, "tokens/s");
  print("gflops", gflops, "GFLOP/s");
  print("peak_gflops", peak, "GFLOP/s");
  print("peak_share", gflops / peak, "");
  print("arena_bytes", static_cast<double>(arena.peak()), "B");
  print("resident_bytes", static_cast<double>(resident), "B");
  if (!options.profile) return;
  for (const auto& [op, t] : stream.totals()) {
    fmt::print(stderr, "{:22} {:6} calls/step {:9.3f} ms/step {:6.1f} % {:8.1f} GFLOP/s {:6.1f} GB/s\n", op,
               t.calls / options.steps, 1e3 * t.seconds / options.steps, 100 * t.seconds / options.steps / median,
               1e-9 * t.flops / t.seconds, 1e-9 * t.bytes / t.seconds);
  }
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
  app.add_option("--threads", options.threads);
  app.add_option("--recompute", options.recompute);
  app.add_option("--moments", options.moments);
  app.add_option("--loss-chunks", options.loss_chunks);
  app.add_flag("--consume-gradients", options.consume_gradients);
  app.add_flag("--profile", options.profile);
  CLI11_PARSE(app, argc, argv);
  try {
    yoke::run(options);
  } catch (const yoke::UserError& error) {
    fmt::print(stderr, "yoke_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
