// Case 21: what any layout saved goes on under any other, and every layout exports the same model.
#include "tests/thread_ranks.h"
#include "tests/train/support.h"
#include "train/held_state.h"

namespace yoke::test {
namespace {

struct Layout {
  const char* name;
  MeshSizes mesh;
  int zero = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int virtual_stages = 1;
};

constexpr auto kInterleaved = PipelineSchedule::interleaved;
constexpr auto kZeroBubble = PipelineSchedule::zero_bubble;

/// Each is loaded from what the one before it saved; the list is a circle.
const std::vector<Layout> kLayouts = {
    {"one rank", {}},
    {"4 ranks, ZeRO 1", {.data = 4}, 1},
    {"2 ranks, ZeRO 3", {.data = 2}, 3},
    {"3 ranks, ZeRO 2", {.data = 3}, 2},
    {"tensor 2", {.tensor = 2}},
    {"pipeline 2", {.pipeline = 2}},
    {"context 2", {.context = 2}},
    {"2 copies", {.data = 2}, 0},
    {"tensor 2, 2 ranks, ZeRO 3", {.data = 2, .tensor = 2}, 3},
    {"pipeline 2, interleaved", {.pipeline = 2}, 1, kInterleaved, 2},
    {"4 ranks, ZeRO 3 over 2", {.data = 4, .shard = 2}, 3},
    {"pipeline 3, zero-bubble", {.pipeline = 3}, 1, kZeroBubble},
    {"context 2, 2 ranks, ZeRO 3", {.data = 2, .context = 2}, 3},
    {"pipeline 2, tensor 2", {.pipeline = 2, .tensor = 2}},
    {"pipeline 2, zero-bubble, 2 ranks, ZeRO 2", {.data = 2, .pipeline = 2}, 2, kZeroBubble},
    {"context 2, tensor 2", {.context = 2, .tensor = 2}},
    {"pipeline 2, interleaved, context 2", {.context = 2, .pipeline = 2}, 1, kInterleaved, 2},
    {"pipeline 2, context 2, tensor 2", {.context = 2, .pipeline = 2, .tensor = 2}},
    {"tensor 2, 3 ranks, ZeRO 1", {.data = 3, .tensor = 2}, 1},
};

constexpr int64_t kGlobalBatch = 12;  // every number of data ranks divides it
constexpr int64_t kSteps = 3;

/// An engine of one rank with its memory.
struct RankEngine {
  RankEngine(const ModelConfig& config, EngineOptions options, const Layout& layout, const Parallel& parallel)
      : parallel(parallel) {
    options.mesh = layout.mesh;
    options.zero = layout.zero;
    options.schedule = layout.schedule;
    options.virtual_stages = layout.virtual_stages;
    options.sequence_length = kBatchLength;
    options.micro_batches = kGlobalBatch / layout.mesh.data;
    const EnginePlan plan = plan_engine(device, config, options, {}, parallel.mesh().rank());
    block.emplace(plan.peak_bytes);
    arena = Arena(block->data(), block->bytes());
    engine.emplace(ctx, config, options, parallel);
  }
  RankEngine(const RankEngine&) = delete;
  RankEngine& operator=(const RankEngine&) = delete;

  /// Losses of steps [first, first + kSteps).
  std::vector<double> train(int64_t first) {
    std::vector<double> losses;
    const MeshSizes& sizes = parallel.mesh().sizes();
    for (int64_t step = first; step < first + kSteps; ++step) {
      std::vector<Batch> batches;
      const int64_t each = kGlobalBatch / sizes.data;
      for (int64_t i = 0; i < each; ++i) {
        const int64_t sequence = parallel.mesh().place().data * each + i;
        batches.push_back(random_batch(1, 20 + sequence, static_cast<uint64_t>(step * 100 + sequence)));
      }
      const StepResult result =
          engine->step(ctx, batches, {.learning_rate = 1e-2, .clip_norm = 1, .step = step, .seed = 3});
      losses.push_back(result.loss());
    }
    return losses;
  }
  void save(const fs::path& folder, int64_t step) {
    save_checkpoint(parallel, folder, step, {{"step", step}}, HeldState(*engine, ctx).pieces(), 1);
  }
  void load(const fs::path& folder) {
    HeldState(*engine, ctx).read(*Checkpoint::newest(folder, parallel));
    engine->refresh_weights(ctx);
  }
  void export_to(const fs::path& folder, const ModelConfig& config) {
    const ParameterTable whole(config);
    write_hf_model(parallel, folder, config, nullptr, whole, HeldState(*engine, ctx).weights(),
                   {.dtype = DType::bf16, .shard_bytes = 20000});
  }

  const Parallel& parallel;
  Device device = Device::cpu(1);
  std::optional<MemoryBlock> block;
  Arena arena;
  Stream stream;
  Context ctx{device, stream, arena};
  std::optional<Engine> engine;
};

/// Every tensor's bytes, in global order.
std::map<std::string, std::string> tensors_of(const fs::path& folder) {
  std::map<std::string, std::string> tensors;
  const auto checkpoint = Checkpoint::newest(folder);
  for (const std::string& name : checkpoint->names()) {
    const Shape& shape = checkpoint->shape(name);
    const DType dtype = checkpoint->dtype(name);
    std::string bytes(static_cast<size_t>(shape.elements()) * size_of(dtype), '\0');
    checkpoint->read(name, shape, Region::whole(shape), TensorView(bytes.data(), dtype, shape));
    tensors[name] = fmt::format("{} {}", name_of(dtype), shape.str()) + bytes;
  }
  return tensors;
}

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

struct Reshard : testing::Test {
  /// Trains and saves under `from`, goes on, and returns the losses of going on.
  std::vector<double> begin(const ModelConfig& config, const EngineOptions& options, const Layout& from) {
    std::vector<double> losses;
    run_ranks(from.mesh, [&](const Parallel& parallel) {
      RankEngine rank(config, options, from, parallel);
      rank.engine->initialise(rank.ctx, 1);
      rank.train(1);
      rank.save(scratch / "saved", kSteps);
      rank.export_to(scratch / "want", config);
      const auto next = rank.train(kSteps + 1);
      if (parallel.first()) losses = next;
    });
    return losses;
  }
  /// Loads what was saved, saves it again and exports it; the losses of going on.
  std::vector<double> go_on(const ModelConfig& config, const EngineOptions& options, const Layout& layout) {
    std::vector<double> losses;
    run_ranks(layout.mesh, [&](const Parallel& parallel) {
      RankEngine rank(config, options, layout, parallel);
      rank.engine->initialise(rank.ctx, 2);  // not what it will be
      rank.load(scratch / "saved");
      rank.save(scratch / "again", kSteps);
      rank.export_to(scratch / "exported", config);
      const auto next = rank.train(kSteps + 1);
      if (parallel.first()) losses = next;
    });
    return losses;
  }

  const Scratch scratch{Scratch::Where::memory};
};

/// Four layers: enough for two pieces on each of two pipeline ranks.
ModelConfig model_of(const std::string& family, nlohmann::json changes = {}) {
  changes["num_hidden_layers"] = 4;
  changes["tie_word_embeddings"] = family == "Qwen2";
  return tiny_model(family, changes);
}

/// Layouts sum gradients in another order: some of fp32's roundings (6e-8) in an update. Three updates moved losses
/// near 5.7 by 3e-8.
constexpr double kSameLoss = 1e-6;

TEST_F(Reshard, EveryLayoutGoesOnFromEveryOther) {
  for (const std::string family : {"Llama", "Qwen2", "Qwen3"}) {
    const ModelConfig config = model_of(family);
    const std::vector<double> want = begin(config, {}, kLayouts[0]);
    const auto saved = tensors_of(scratch / "saved");
    const auto exported = files_in(scratch / "want");
    for (size_t i = 1; i <= kLayouts.size(); ++i) {
      const Layout& layout = kLayouts[i % kLayouts.size()];
      SCOPED_TRACE(family + ", " + layout.name);
      const std::vector<double> losses = go_on(config, {}, layout);
      for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(losses[s], want[s], kSameLoss) << s;
      EXPECT_TRUE(tensors_of(scratch / "again") == saved) << "what was loaded is not what was saved";
      EXPECT_TRUE(files_in(scratch / "exported") == exported);
      fs::remove_all(scratch / "saved");
      fs::rename(scratch / "again", scratch / "saved");
      if (family == "Llama") fmt::print("{}: losses {}\n", layout.name, losses);
    }
  }
}

// What a layout has trained, the next one goes on with and exports as the same model, whatever the order.
TEST_F(Reshard, WhatEveryLayoutTrainedGoesOnUnderTheNext) {
  for (size_t i = 0; i < kLayouts.size(); ++i) {
    const Layout &from = kLayouts[i], &to = kLayouts[(i + 1) % kLayouts.size()];
    const ModelConfig config = model_of(i % 2 == 0 ? "Llama" : "Qwen2");
    SCOPED_TRACE(fmt::format("{} -> {}", from.name, to.name));
    const std::vector<double> want = begin(config, {}, from);
    const std::vector<double> losses = go_on(config, {}, to);
    for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(losses[s], want[s], kSameLoss) << s;
    EXPECT_TRUE(tensors_of(scratch / "again") == tensors_of(scratch / "saved"));
    EXPECT_TRUE(files_in(scratch / "exported") == files_in(scratch / "want"));
    for (const char* folder : {"saved", "again", "want", "exported"}) fs::remove_all(scratch / folder);
  }
}

TEST_F(Reshard, WhateverTheOptimizerKeeps) {
  const ModelConfig config = model_of("Llama", {{"hidden_size", 64}, {"head_dim", 16}, {"intermediate_size", 160}});
  const std::vector<EngineOptions> formats = {
      {.compute = DType::bf16},
      {.compute = DType::bf16, .optimizer = {.moments = MomentsFormat::bf16}, .fp32_master = false},
      {.optimizer = {.kind = OptimizerKind::sgd, .moments = MomentsFormat::bf16}},
      {.optimizer = {.kind = OptimizerKind::sgd, .momentum = 0}}};
  for (size_t f = 0; f < formats.size(); ++f) {
    begin(config, formats[f], kLayouts[0]);
    const auto saved = tensors_of(scratch / "saved");
    for (size_t i = 1; i <= kLayouts.size(); ++i) {
      const Layout& layout = kLayouts[i % kLayouts.size()];
      SCOPED_TRACE(fmt::format("format {}, {}", f, layout.name));
      go_on(config, formats[f], layout);
      EXPECT_TRUE(tensors_of(scratch / "again") == saved);
      EXPECT_TRUE(files_in(scratch / "exported") == files_in(scratch / "want"));
      fs::remove_all(scratch / "saved");
      fs::rename(scratch / "again", scratch / "saved");
    }
  }
}

TEST_F(Reshard, MomentsOfEightBits) {
  const ModelConfig config = model_of("Llama", {{"hidden_size", 64}, {"head_dim", 16}, {"intermediate_size", 160}});
  const EngineOptions options{.optimizer = {.moments = MomentsFormat::int8}};
  const std::vector<double> want = begin(config, options, kLayouts[0]);
  const auto saved = tensors_of(scratch / "saved");
  const std::string output = "moments.first.layers.0.attention.output", qkv = "moments.first.layers.0.attention.qkv";
  EXPECT_TRUE(saved.at(output).starts_with("uint8")) << saved.at(output).substr(0, 20);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const std::vector<double> losses = go_on(config, options, layout);
    // Divided columns are rounded once more.
    for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(losses[s], want[s], layout.mesh.tensor > 1 ? 2e-2 : 1e-4);
    const auto again = tensors_of(scratch / "again");
    EXPECT_TRUE(again.at(qkv) == saved.at(qkv));
    if (layout.mesh.tensor == 1) {
      EXPECT_TRUE(again == saved);
    } else {
      EXPECT_TRUE(again.at(output).starts_with("fp32"));
      EXPECT_FALSE(again.contains("scales.first.layers.0.attention.output"));
    }
  }
  // What a divided layout saved, it goes on with bit for bit.
  const Layout divided{"tensor 2, 2 ranks, ZeRO 3", {.data = 2, .tensor = 2}, 3};
  const std::vector<double> undisturbed = begin(config, options, divided);
  const std::vector<double> losses = go_on(config, options, divided);
  EXPECT_EQ(losses, undisturbed);
  EXPECT_TRUE(tensors_of(scratch / "again") == tensors_of(scratch / "saved"));
}

}  // namespace
}  // namespace yoke::test
