// Layouts of up to so many ranks, enumerated.
#pragma once

#include "tests/train/support.h"
#include "train/mesh_check.h"
#include "train/recipe_words.h"

namespace yoke::test {

/// Heads, sizes and layers that every axis up to 4 divides.
inline ModelConfig mesh_model() {
  return tiny_model("Llama", {{"num_hidden_layers", 8}, {"num_key_value_heads", 4}, {"max_position_embeddings", 64}});
}

inline std::string text_of(const EngineOptions& o) {
  const MeshSizes& m = o.mesh;
  return fmt::format(
      "data {} context {} pipeline {} tensor {} shard {}, zero {}, {} x {}, {} x {} rows, {}, recompute {}", m.data,
      m.context, m.pipeline, m.tensor, m.shard, o.zero, word_of<PipelineSchedule>(o.schedule, kPipelineScheduleWords),
      o.virtual_stages, o.micro_batches, o.micro_batch, name_of(o.compute),
      word_of<Recompute>(o.recompute, kRecomputeWords));
}

/// Every mesh of data 1 to 4, context, tensor and pipeline 1, 2, 4, with each ZeRO stage, hybrid shards where data has
/// them, and each schedule of a pipeline.
inline std::vector<EngineOptions> mesh_options(int most_ranks, EngineOptions options = {}) {
  options.micro_batch = 2;
  options.sequence_length = kBatchLength;
  if (options.micro_batches == 1) options.micro_batches = 3;
  std::vector<EngineOptions> all;
  struct Pipe {
    int ranks;
    PipelineSchedule schedule;
    int pieces;
  };
  constexpr PipelineSchedule k1f1b = PipelineSchedule::one_f_one_b;
  constexpr PipelineSchedule kInterleaved = PipelineSchedule::interleaved, kZeroBubble = PipelineSchedule::zero_bubble;
  const Pipe pipes[] = {{1, k1f1b, 1}, {2, k1f1b, 1},        {2, kInterleaved, 2}, {2, kZeroBubble, 1},
                        {4, k1f1b, 1}, {4, kInterleaved, 2}, {4, kZeroBubble, 1}};
  for (const Pipe& pipe : pipes) {
    for (int data = 1; data <= 4; ++data) {
      for (const int context : {1, 2, 4}) {
        for (const int tensor : {1, 2, 4}) {
          for (int zero = 0; zero <= (data * context > 1 ? 3 : 0); ++zero) {
            for (const int shard : {0, 2}) {
              options.mesh = {.data = data, .context = context, .pipeline = pipe.ranks, .tensor = tensor};
              if (options.mesh.ranks() > most_ranks) continue;
              if (shard > 0 && (zero == 0 || options.mesh.replicas() <= shard || options.mesh.replicas() % shard > 0))
                continue;
              options.mesh.shard = shard;
              options.zero = zero;
              options.schedule = pipe.schedule;
              options.virtual_stages = pipe.pieces;
              check_mesh(options, mesh_model());
              all.push_back(options);
            }
          }
        }
      }
    }
  }
  return all;
}

}  // namespace yoke::test
