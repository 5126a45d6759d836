// Meshes that a model or a run can't be divided over are refused by name, with the legal sizes.
#include "train/mesh_check.h"

#include "tests/train/support.h"
#include "train/run_setup.h"

namespace yoke::test {
namespace {

/// Heads 4, kv heads 2, mlp 48.
std::string fault(const EngineOptions& options, const nlohmann::json& changes = {}) {
  return error_of([&] { check_mesh(options, tiny_model("Llama", changes)); }, ExitCode::usage);
}

TEST(MeshCheck, TensorRanksDivideHeadsMlpAndTokens) {
  for (const int tensor : {1, 2}) check_mesh({.sequence_length = 16, .mesh = {.tensor = tensor}}, tiny_model("Llama"));
  EXPECT_EQ(fault({.sequence_length = 16, .mesh = {.tensor = 4}}),
            "parallel.tensor is 4; it has to divide num_attention_heads (4), num_key_value_heads (2), "
            "intermediate_size (48), data.sequence_length (16): legal are 1, 2.");
  EXPECT_CONTAINS(fault({.sequence_length = 16, .mesh = {.tensor = 8}}, {{"num_key_value_heads", 4}}),
                  "legal are 1, 2, 4.");
  EXPECT_CONTAINS(fault({.sequence_length = 15, .mesh = {.tensor = 2}}), "data.sequence_length (15): legal are 1.");
  EXPECT_CONTAINS(fault({.sequence_length = 16, .mesh = {.tensor = 3}}), "legal are 1, 2.");
  EXPECT_CONTAINS(fault({.sequence_length = 16, .mesh = {.tensor = 2}}, {{"intermediate_size", 47}}),
                  "intermediate_size (47)");
  EXPECT_CONTAINS(fault({.sequence_length = 24, .mesh = {.context = 4, .tensor = 4}}, {{"num_key_value_heads", 4}}),
                  "data.sequence_length over parallel.context (6)");
  EXPECT_CONTAINS(fault({.sequence_length = 12, .mesh = {.context = 4}}), "parallel.context is 4");
}

TEST(MeshCheck, WholeMatricesAreNotDivided) {
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::adafactor}) {
    EXPECT_CONTAINS(fault({.sequence_length = 16, .optimizer = {.kind = kind}, .mesh = {.tensor = 2}}),
                    "needs whole matrices, and parallel.tensor 2 divides them");
    EXPECT_CONTAINS(fault({.optimizer = {.kind = kind}, .mesh = {.data = 4, .shard = 2}, .zero = 1}),
                    "parallel.zero 1 divides them over 2 ranks: use adamw or sgd, or parallel.zero 0.");
    check_mesh({.optimizer = {.kind = kind}, .mesh = {.data = 2, .pipeline = 2}, .zero = 0}, tiny_model("Llama"));
    check_mesh({.optimizer = {.kind = kind}, .mesh = {.pipeline = 2}, .zero = 1}, tiny_model("Llama"));
  }
  EXPECT_CONTAINS(fault({.sequence_length = 16, .consume_gradients = true, .mesh = {.tensor = 2}}),
                  "memory.consume_gradients is true; it needs parallel.tensor 1, found 2.");
}

TEST(MeshCheck, EveryStageHasALayer) {
  check_mesh({.mesh = {.pipeline = 2}}, tiny_model("Llama"));
  EXPECT_CONTAINS(fault({.mesh = {.pipeline = 3}}), "3 stages, but the model has 2 layers");
  EXPECT_CONTAINS(fault({.mesh = {.pipeline = 2}, .schedule = PipelineSchedule::interleaved, .virtual_stages = 2}),
                  "parallel.pipeline x parallel.virtual_stages are 4 stages, but the model has 2 layers");
}

TEST(MeshCheck, PipelineSizesAreBounded) {
  EXPECT_CONTAINS(
      fault({.mesh = {.pipeline = 1 << 12}, .schedule = PipelineSchedule::interleaved, .virtual_stages = 1 << 20}),
      "are 4294967296 stages, but the model has 2 layers");
  EXPECT_CONTAINS(fault({.micro_batches = int64_t{1} << 31, .mesh = {.pipeline = 2}}),
                  "makes 2147483648 micro-batches a step on each data rank; a pipeline takes at most 65536");
}

TEST(MeshCheck, ShardsDivideReplicas) {
  for (const int shard : {0, 1, 2, 3, 6}) {
    check_mesh({.sequence_length = 16, .mesh = {.data = 3, .context = 2, .shard = shard}}, tiny_model("Llama"));
  }
  EXPECT_EQ(fault({.sequence_length = 16, .mesh = {.data = 3, .context = 2, .shard = 4}}),
            "parallel.shard is 4; it has to divide the 6 ranks of parallel.data x parallel.context: legal are 1, 2, 3, "
            "6.");
}

// Case 16: key/value heads, when the recipe is read against the model.
TEST(MeshCheck, RecipesAreRefused) {
  Recipe recipe;
  recipe.data.sequence_length = 16;
  recipe.parallel.tensor = 4;
  EXPECT_CONTAINS(error_of([&] { engine_options(recipe, tiny_model("Llama"), DType::f32); }, ExitCode::usage),
                  "num_key_value_heads (2)");
  recipe.parallel.tensor = 2;
  EXPECT_EQ(engine_options(recipe, tiny_model("Llama"), DType::f32).mesh.tensor, 2);
}

}  // namespace
}  // namespace yoke::test
