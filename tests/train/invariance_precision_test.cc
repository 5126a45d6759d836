// Layouts in bf16 and fp16: rounding differs, the size of errors doesn't; bits are the same where sums are; overflows
// are skipped by all ranks.
#include "tests/train/invariance_support.h"
#include "train/mesh_check.h"

namespace yoke {
namespace {

using test::LayoutJob;
using test::LayoutRun;

ModelConfig model(const char* family) {
  return test::tiny_model(family, {{"vocab_size", 101},
                                   {"bos_token_id", 1},
                                   {"eos_token_id", 2},
                                   {"num_attention_heads", 8},
                                   {"num_key_value_heads", 4},
                                   {"num_hidden_layers", 4}});
}

EngineOptions options_of(const MeshSizes& mesh, int zero, DType compute, int64_t micro_batches) {
  return {.compute = compute,
          .micro_batch = test::kInvarianceRows,
          .sequence_length = test::kInvarianceLength,
          .micro_batches = micro_batches,
          .mesh = mesh,
          .zero = zero};
}

/// Every legal mesh of 2 to 4 ranks.
std::vector<MeshSizes> meshes(const ModelConfig& config) {
  std::vector<MeshSizes> all;
  for (int d = 1; d <= 4; ++d) {
    for (int c = 1; d * c <= 4; ++c) {
      for (int p = 1; d * c * p <= 4; ++p) {
        for (int t = 1; d * c * p * t <= 4; ++t) {
          const MeshSizes mesh{d, c, p, t};
          if (mesh.ranks() == 1) continue;
          try {
            check_mesh(options_of(mesh, 0, DType::bf16, 1), config);
            all.push_back(mesh);
          } catch (const UserError&) {
          }
        }
      }
    }
  }
  return all;
}

std::string text_of(const MeshSizes& m, int zero) {
  return fmt::format("data {} context {} pipeline {} tensor {}, zero {}", m.data, m.context, m.pipeline, m.tensor,
                     zero);
}

void expect_no_faults(const LayoutRun& run) {
  for (const std::string& fault : run.faults) ADD_FAILURE() << fault;
}

bool same(const test::WholeTensors& a, const test::WholeTensors& b) {
  if (a.tensors().size() != b.tensors().size()) return false;
  for (const auto& [name, tensor] : a.tensors()) {
    if (tensor.values != b.tensors().at(name).values) return false;
  }
  return true;
}

// One rank and a layout each round on their own. Their errors against fp32 are alike, so that they are at most twice
// that apart.
TEST(InvariancePrecision, Bf16RoundsAsMuchAsOneRank) {
  const UpdateOptions update{.learning_rate = 3e-3, .epsilon = 1e-5, .clip_norm = 0.5};
  for (const char* family : {"Llama", "Qwen3"}) {
    const ModelConfig config = model(family);
    std::map<int64_t, std::pair<LayoutRun, double>> whole;  // by micro-batches: the run, and its distance from fp32
    int zero = 0;
    for (const MeshSizes& mesh : meshes(config)) {
      const int64_t count = 2 * mesh.data;
      auto [at, is_new] = whole.try_emplace(count);
      auto& [want, error] = at->second;
      if (is_new) {
        want = test::run_layout({config, options_of({}, 0, DType::bf16, count), 3, update});
        error = distances(want, test::run_layout({config, options_of({}, 0, DType::f32, count), 3, update})).gradient;
        EXPECT_GT(error, 1e-4);
      }
      zero = (zero + 1) % 4;
      SCOPED_TRACE(fmt::format("{}, {}", family, text_of(mesh, zero)));
      const LayoutRun got = test::run_layout({config, options_of(mesh, zero, DType::bf16, 2), 3, update});
      expect_no_faults(got);
      EXPECT_LE(distances(got, want).gradient, 2 * error);
      EXPECT_LE(distances(got, want).loss, 2 * error);
    }
  }
}

// Without a master everything is rounded at random. A pipeline adds what one rank adds, and ZeRO what data ranks add.
TEST(InvariancePrecision, RandomRoundingIsThatOfEveryLayoutWithTheSameSums) {
  const ModelConfig config = model("Qwen2");
  for (const int data : {1, 2, 3}) {
    std::optional<LayoutRun> want;
    for (const int pipeline : {1, 2, 4}) {
      for (int zero = 0; zero <= (data == 1 ? 0 : 3) && data * pipeline <= 8; ++zero) {
        const MeshSizes mesh{.data = data, .pipeline = pipeline};
        SCOPED_TRACE(text_of(mesh, zero));
        EngineOptions options = options_of(mesh, zero, DType::bf16, 1);
        options.fp32_master = false;
        options.optimizer.moments = MomentsFormat::bf16;
        LayoutRun got = test::run_layout({config, options, 4, {.learning_rate = 1e-2, .seed = 3}});
        expect_no_faults(got);
        if (!want) {
          want = std::move(got);
        } else {
          EXPECT_TRUE(same(got.weights, want->weights));
        }
      }
    }
  }
}

TEST(InvariancePrecision, Fp16OverflowsAreSkippedByAll) {
  const ModelConfig config = model("Mistral");
  int zero = 0;
  for (const MeshSizes& mesh : meshes(config)) {
    zero = (zero + 1) % 4;
    for (const double scale : {1024.0, 0x1p40}) {
      SCOPED_TRACE(fmt::format("{}, scale {}", text_of(mesh, zero), scale));
      const LayoutRun run = test::run_layout({config,
                                              options_of(mesh, zero, DType::f16, 2),
                                              1,
                                              {.learning_rate = 1e-2, .clip_norm = 1, .loss_scale = scale}});
      ASSERT_EQ(run.steps.size(), 1u);
      EXPECT_EQ(run.steps[0].finite, scale == 1024);
      EXPECT_EQ(same(run.after, run.before), scale != 1024);
      for (const std::string& fault : run.faults) {
        // Not a number is not equal to itself.
        EXPECT_TRUE(scale != 1024 && test::contains(fault, "differs between ranks")) << fault;
      }
    }
  }
}

}  // namespace
}  // namespace yoke
