#include "train/mesh_check.h"

#include <fmt/ranges.h>

#include <numeric>

#include "train/context_batch.h"
#include "train/mesh_choice.h"
#include "train/pipeline_stages.h"
#include "train/recipe_words.h"

namespace yoke {

namespace {

/// Micro-batches of a step that a pipeline's lists are made for.
constexpr int64_t kMostPipelined = int64_t{1} << 16;

/// A size that ranks of an axis share evenly, as messages call it.
struct Divided {
  std::string name;
  int64_t size;
};

void check_axis(const char* key, int64_t ranks, const std::vector<Divided>& divided) {
  int64_t common = 0;
  std::vector<std::string> names;
  bool legal = true;
  for (const Divided& d : divided) {
    common = std::gcd(common, d.size);
    names.push_back(fmt::format("{} ({})", d.name, d.size));
    legal = legal && d.size % ranks == 0;
  }
  if (legal) return;
  fail_usage("{} is {}; it has to divide {}: legal are {}.", key, ranks, fmt::join(names, ", "), divisors_text(common));
}

void check_tensor_axis(const EngineOptions& options, const ModelConfig& model) {
  const MeshSizes& mesh = options.mesh;
  if (mesh.tensor == 1) return;
  const bool context = mesh.context > 1;
  check_axis("parallel.tensor", mesh.tensor,
             {{"num_attention_heads", model.heads},
              {"num_key_value_heads", model.kv_heads},
              {"intermediate_size", model.mlp},
              {context ? "data.sequence_length over parallel.context" : "data.sequence_length",
               options.sequence_length / mesh.context}});
  if (options.consume_gradients) {
    fail_usage("memory.consume_gradients is true; it needs parallel.tensor 1, found {}.", mesh.tensor);
  }
}

/// Muon and Adafactor compute with whole matrices.
void check_optimizer(const EngineOptions& options) {
  const OptimizerKind kind = options.optimizer.kind;
  if (kind != OptimizerKind::muon && kind != OptimizerKind::adafactor) return;
  const std::string_view name = word_of<OptimizerKind>(kind, kOptimizerWords);
  const MeshSizes& mesh = options.mesh;
  if (mesh.tensor > 1) {
    fail_usage(
        "train.optimizer is {}, which needs whole matrices, and parallel.tensor {} divides them: use adamw or "
        "sgd, or parallel.tensor 1.",
        name, mesh.tensor);
  }
  if (options.zero > 0 && mesh.shards() > 1) {
    fail_usage(
        "train.optimizer is {}, which needs whole matrices, and parallel.zero {} divides them over {} ranks: use adamw "
        "or sgd, or parallel.zero 0.",
        name, options.zero, mesh.shards());
  }
}

void check_shards(const EngineOptions& options) {
  const MeshSizes& mesh = options.mesh;
  const int replicas = mesh.replicas();
  if (mesh.shard <= 0 || replicas % mesh.shard == 0) return;
  fail_usage("parallel.shard is {}; it has to divide the {} ranks of parallel.data x parallel.context: legal are {}.",
             mesh.shard, replicas, divisors_text(replicas));
}

}  // namespace

void check_mesh(const EngineOptions& options, const ModelConfig& model) {
  check_context_split(options.sequence_length, options.mesh.context);
  check_tensor_axis(options, model);
  check_shards(options);
  check_optimizer(options);
  if (options.mesh.pipeline > 1) {
    const int64_t stages = int64_t{options.mesh.pipeline} * options.virtual_stages;
    balance_layers(model.layers, stages, pipeline_costs(model, options.sequence_length));
    if (options.micro_batches > kMostPipelined) {
      fail_usage(
          "train.global_batch makes {} micro-batches a step on each data rank; a pipeline takes at most {}: use a "
          "larger "
          "train.micro_batch, a smaller train.global_batch or more data ranks.",
          options.micro_batches, kMostPipelined);
    }
  }
  if (options.consume_gradients && options.mesh.ranks() > 1) {
    fail_usage(
        "memory.consume_gradients is true, which updates tensors before ranks have added up their gradients; it "
        "needs one rank, and parallel asks for {}.",
        options.mesh.ranks());
  }
}

}  // namespace yoke
