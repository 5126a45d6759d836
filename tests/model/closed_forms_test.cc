// Parameters, FLOPs and saved activations of published models against published counts and closed forms.
#include <gtest/gtest.h>

#include "model/activations.h"
#include "model/config.h"
#include "model/parameters.h"

namespace yoke {
namespace {

struct Published {
  const char* name;
  ModelConfig config;
  int64_t parameters;  ///< as the models' own files add up
};

ModelConfig model(Architecture architecture, int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads,
                  int64_t kv_heads, int64_t head_dim, int64_t mlp, bool tied = false) {
  return {.architecture = architecture,
          .vocabulary = vocabulary,
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .mlp = mlp,
          .max_positions = 8192,
          .tied_embeddings = tied,
          .qkv_bias = architecture == Architecture::qwen2,
          .qk_norm = architecture == Architecture::qwen3};
}

const ModelConfig kLlama8B = model(Architecture::llama, 128256, 4096, 32, 32, 8, 128, 14336);

std::vector<Published> published() {
  using enum Architecture;
  return {{"Llama-3.1-8B", kLlama8B, 8'030'261'248},
          {"Llama-3.1-70B", model(llama, 128256, 8192, 80, 64, 8, 128, 28672), 70'553'706'496},
          {"Llama-3.2-1B", model(llama, 128256, 2048, 16, 32, 8, 64, 8192, true), 1'235'814'400},
          {"Llama-2-7B", model(llama, 32000, 4096, 32, 32, 32, 128, 11008), 6'738'415'616},
          {"TinyLlama-1.1B", model(llama, 32000, 2048, 22, 32, 4, 64, 5632), 1'100'048'384},
          {"SmolLM2-135M", model(llama, 49152, 576, 30, 9, 3, 64, 1536, true), 134'515'008},
          {"Mistral-7B-v0.1", model(mistral, 32000, 4096, 32, 32, 8, 128, 14336), 7'241'732'096},
          {"Qwen2.5-0.5B", model(qwen2, 151936, 896, 24, 14, 2, 64, 4864, true), 494'032'768},
          {"Qwen2.5-7B", model(qwen2, 152064, 3584, 28, 28, 4, 128, 18944), 7'615'616'512},
          {"Qwen3-0.6B", model(qwen3, 151936, 1024, 28, 16, 8, 128, 3072, true), 596'049'920},
          {"Qwen3-8B", model(qwen3, 151936, 4096, 36, 32, 8, 128, 12288), 8'190'735'360}};
}

TEST(ClosedForms, ParametersOfPublishedModels) {
  for (const Published& p : published()) {
    EXPECT_EQ(p.config.parameters(), p.parameters) << p.name;
    EXPECT_EQ(ParameterTable(p.config).elements(), p.parameters) << p.name;
    const int64_t embedding = p.config.vocabulary * p.config.hidden;
    EXPECT_EQ(p.config.product_parameters(), p.parameters - (p.config.tied_embeddings ? 0 : embedding)) << p.name;
  }
}

TEST(ClosedForms, TrainingFlops) {
  // 6 (8030261248 - 128256 * 4096) + 6 * 32 layers * 8192 tokens * 4096
  EXPECT_EQ(kLlama8B.training_flops_per_token(8192), 51'471'998'976.0);
  EXPECT_EQ(kLlama8B.training_flops_per_token(1), 45'029'548'032.0 + 6 * 32 * 4096);
  for (const Published& p : published()) {
    const ModelConfig& c = p.config;
    const double products =
        static_cast<double>(p.parameters) - (c.tied_embeddings ? 0 : static_cast<double>(c.vocabulary * c.hidden));
    const double attention = 6.0 * static_cast<double>(c.layers * 2048 * c.heads * c.head_dim);
    EXPECT_EQ(c.training_flops_per_token(2048), 6 * products + attention) << p.name;
  }
}

/// 8h + 4nd + 4kd + 6f in two-byte types, and the fp32 log-sum-exp and the two reciprocal deviations.
int64_t closed_form(const ModelConfig& c) {
  return 8 * c.hidden + 4 * c.q_size() + 4 * c.kv_size() + 6 * c.mlp + 4 * c.heads + 8;
}

TEST(ClosedForms, SavedActivations) {
  const auto saved = [](const ModelConfig& c, Recompute r) {
    return ActivationTable(c, DType::bf16, r).saved_bytes_per_token();
  };
  EXPECT_EQ(saved(kLlama8B, Recompute::none), 139'264 + 4 * 32 + 8);
  for (const Published& p : published()) {
    SCOPED_TRACE(p.name);
    const ModelConfig& c = p.config;
    const int64_t all = closed_form(c) + (c.qk_norm ? 4 * (c.heads + c.kv_heads) + 2 * (c.q_size() + c.kv_size()) : 0);
    EXPECT_EQ(saved(c, Recompute::none), all);
    EXPECT_EQ(saved(c, Recompute::norms), all - 4 * c.hidden - 2 * c.mlp);
    EXPECT_EQ(saved(c, Recompute::mlp), all - 4 * c.hidden - 6 * c.mlp);
    EXPECT_EQ(saved(c, Recompute::block), 2 * c.hidden);
    // Tensor parallelism with sequence parallelism divides all of it.
    for (const Recompute r : {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::block}) {
      for (const int t : {2, 4, 8}) {
        if (c.kv_heads % t != 0 || c.heads % t != 0) continue;
        EXPECT_EQ(ActivationTable(c.local({0, t}), DType::bf16, r, t).saved_bytes_per_token() * t, saved(c, r));
      }
    }
  }
}

}  // namespace
}  // namespace yoke
