// Plans of meshes: every rank's is what its engine takes, to the byte; the plan of the mesh is the worst of them; and
// state is what the closed forms say.
#include <map>
#include <mutex>

#include "tests/thread_ranks.h"
#include "tests/train/meshes.h"
#include "tests/train/support.h"
#include "train/fit.h"
#include "train/pipeline_stages.h"

namespace yoke {
namespace {

using test::random_batch;

ModelConfig model() { return test::mesh_model(); }

/// Steps on ranks that are threads, in memory that has just the planned bytes: the peak of each.
std::vector<size_t> peaks_of_engines(const EngineOptions& options) {
  std::vector<size_t> peaks(static_cast<size_t>(options.mesh.ranks()));
  test::run_ranks(options.mesh, [&](const Parallel& parallel) {
    const Device device = Device::cpu(1);
    const int rank = parallel.mesh().rank();
    const MemoryBlock block(plan_engine(device, model(), options, {}, rank).peak_bytes);
    Arena arena(block.data(), block.bytes());
    Stream stream;
    Context ctx{device, stream, arena};
    Engine engine(ctx, model(), options, parallel);
    engine.initialise(ctx, 1);
    std::vector<Batch> batches;
    for (int64_t m = 0; m < options.micro_batches; ++m) {
      const auto seed = static_cast<uint64_t>(10 * m + parallel.mesh().place().data);
      batches.push_back(random_batch(options.micro_batch, 9, seed));
    }
    engine.step(ctx, batches, {.learning_rate = 1e-3, .step = 1});
    engine.evaluate(ctx, batches[0]);
    peaks[static_cast<size_t>(rank)] = arena.peak();
  });
  return peaks;
}

std::vector<size_t> peaks_of_plans(const EngineOptions& options) {
  std::vector<size_t> peaks;
  for (int rank = 0; rank < options.mesh.ranks(); ++rank) {
    peaks.push_back(plan_engine(Device::cpu(1), model(), options, {}, rank).peak_bytes);
  }
  return peaks;
}

std::vector<EngineOptions> variants() {
  return {{.compute = DType::f32},
          {.compute = DType::bf16,
           .recompute = Recompute::block,
           .optimizer = {.moments = MomentsFormat::int8},
           .gradients = DType::bf16},
          {.compute = DType::bf16,
           .recompute = Recompute::mlp,
           .recompute_layers = 3,
           .optimizer = {.moments = MomentsFormat::bf16},
           .fp32_master = false}};
}

// The plan of the mesh looks at one rank a stage, at the shard that has most of the optimizer's state.
TEST(MeshPlan, IsTheWorstOfAllRanks) {
  size_t planned = 0;
  for (const EngineOptions& variant : variants()) {
    for (const EngineOptions& options : test::mesh_options(8, variant)) {
      SCOPED_TRACE(test::text_of(options));
      const EnginePlan plan = plan_mesh(Device::cpu(1), model(), options);
      const std::vector<size_t> peaks = peaks_of_plans(options);
      EXPECT_EQ(plan.peak_bytes, *std::max_element(peaks.begin(), peaks.end()));
      EXPECT_EQ(plan.peak_bytes, peaks[static_cast<size_t>(plan.rank)]);
      ASSERT_EQ(plan.stages.size(), static_cast<size_t>(options.mesh.pipeline));
      std::vector<size_t> stages(plan.stages.size(), 0);
      for (int rank = 0; rank < options.mesh.ranks(); ++rank) {
        size_t& stage = stages[static_cast<size_t>(Mesh(options.mesh, rank).place().pipeline)];
        stage = std::max(stage, peaks[static_cast<size_t>(rank)]);
      }
      for (size_t s = 0; s < stages.size(); ++s) EXPECT_EQ(plan.stages[s].peak_bytes, stages[s]) << "stage " << s;
      ++planned;
    }
  }
  EXPECT_GT(planned, 3 * 250u);
  fmt::print("{} layouts\n", planned);
}

TEST(MeshPlan, OfEveryRankIsWhatItsEngineTakes) {
  for (const EngineOptions& variant : variants()) {
    for (const EngineOptions& options : test::mesh_options(4, variant)) {
      SCOPED_TRACE(test::text_of(options));
      EXPECT_EQ(peaks_of_engines(options), peaks_of_plans(options));
    }
  }
}

// Settings that fit rank 0 and not another don't fit.
TEST(MeshPlan, TheSearchFitsTheWorstRank) {
  EngineOptions options{.micro_batch = 2, .sequence_length = 32, .micro_batches = 2, .mesh = {.pipeline = 4}};
  const std::vector<size_t> peaks = peaks_of_plans(options);
  const auto [least, most] = std::minmax_element(peaks.begin(), peaks.end());
  ASSERT_LT(*least, *most);
  const auto search = [&](size_t bytes) {
    return FitSearch(Device::cpu(1), model(), {}, static_cast<double>(bytes)).fastest(options, {});
  };
  EXPECT_TRUE(search(*most));
  EXPECT_FALSE(search(*most - 1));
}

struct StateForm {
  const char* name;
  EngineOptions options;
  /// Bytes a parameter on each rank: of the whole, and of 1/N.
  double whole[4], shared[4];
};

// The table of bytes a parameter, alone and with ZeRO-1, 2 and 3 over N ranks.
TEST(MeshPlan, StateIsTheClosedFormOfBytesAParameter) {
  const EngineOptions bf16{.compute = DType::bf16};
  EngineOptions bf16_gradients = bf16, bf16_only = bf16, eight_bit = bf16;
  bf16_gradients.gradients = bf16_only.gradients = eight_bit.gradients = DType::bf16;
  bf16_only.fp32_master = false;
  bf16_only.optimizer.moments = MomentsFormat::bf16;
  eight_bit.optimizer.moments = MomentsFormat::int8;
  const StateForm forms[] = {{"bf16 + master, bf16 gradients", bf16_gradients, {16, 4, 2, 0}, {0, 12, 14, 16}},
                             {"bf16 + master, fp32 gradients", bf16, {18, 6, 2, 0}, {0, 12, 16, 18}},
                             {"fp32", {}, {16, 8, 4, 0}, {0, 8, 12, 16}},
                             {"bf16 everything", bf16_only, {8, 4, 2, 0}, {0, 4, 6, 8}},
                             {"8-bit Adam + master", eight_bit, {10, 4, 2, 0}, {0, 6, 8, 10}}};
  ModelConfig large = test::tiny_model("Llama", {{"vocab_size", 32000},
                                                 {"hidden_size", 768},
                                                 {"intermediate_size", 2048},
                                                 {"num_hidden_layers", 12},
                                                 {"num_attention_heads", 12},
                                                 {"num_key_value_heads", 12},
                                                 {"head_dim", 64}});
  const auto parameters = static_cast<double>(large.parameters());
  const double layer = parameters / 12 - 2.0 * 32000 * 768 / 12;  // of one, near enough
  const double vectors = 25.0 * 768;                              // norms, whose copies and gradients are wider
  for (const StateForm& form : forms) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const int ranks : {2, 3, 4, 8}) {
        SCOPED_TRACE(fmt::format("{}, ZeRO-{} over {} ranks", form.name, zero, ranks));
        EngineOptions options = form.options;
        options.sequence_length = 8;
        options.mesh.data = ranks;
        options.zero = zero;
        // What is gathered or summed layer by layer: two layers of each at a time, and what is outside the layers.
        const double compute = options.has_copies() ? 2 : form.options.compute == DType::f32 ? 4 : 2;
        const double gradient = options.gradients == DType::bf16 ? 2 : 4;
        const double live = 2 * layer + 2.0 * 32000 * 768;
        const double extra = (zero >= 3 ? compute * live : 0) + (zero >= 2 ? gradient * live : 0);
        const double scales = options.optimizer.moments == MomentsFormat::int8 ? 2 * 4.0 / 256 : 0;
        const double per =
            form.whole[zero] + (form.shared[zero] + (zero > 0 ? scales : 0)) / ranks + (zero == 0 ? scales : 0);
        // Padding: each of the 26 units to a multiple of 512 elements a shard, of at most 18 bytes each; the arena's.
        const double padding = 18.0 * (26.0 * ranks * 512 + 9 * 12 * 512) + 64 * 12 * 12 * 5 + 4 * vectors * 4;
        for (int rank = 0; rank < ranks; ++rank) {
          const double got = static_cast<double>(state_bytes(large, options, rank)) - extra;
          EXPECT_NEAR(got, per * parameters, padding / (zero == 3 ? ranks : 1) + 1e-3 * per * parameters) << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace yoke
