// Every key of the recipe with its field and its rule, once: reading, writing and documentation walk this list.
#pragma once

#include <cmath>

#include "train/recipe.h"
#include "train/recipe_rules.h"

namespace yoke {

/// Calls visit(key, field, rule) for every key, in the order of docs/recipe.md.
template <class Visitor>
void visit_recipe(Recipe& r, Visitor&& visit) {
  constexpr double kInfinity = INFINITY;
  constexpr int64_t kLargest = int64_t{1} << 31;  // of anything that indexes or counts within a step
  const Whole steps{0, INT64_MAX};

  visit("model.path", r.model.path, Text{"a folder that holds a model's config.json"});
  visit("model.init", r.model.init, Choice<Initialisation>{kInitialisationWords});
  visit("model.tokenizer", r.model.tokenizer, Absent<Text>{{"a tokenizer's file or folder, or bytes"}});

  visit("data.train", r.data.train, Texts{"a file, glob or folder, or a list of them"});
  visit("data.validation", r.data.validation, FractionOrFiles{});
  visit("data.format", r.data.format, Choice<DataFormat>{kDataFormatWords});
  visit("data.sequence_length", r.data.sequence_length, Whole{2, int64_t{1} << 24});
  visit("data.packing", r.data.packing, Flag{});

  visit("train.steps", r.train.steps, Absent<Whole>{{1, INT64_MAX}});
  visit("train.epochs", r.train.epochs, Absent<Real>{{0, 1e9, false, true}});
  visit("train.tokens", r.train.tokens, Absent<Whole>{{1, INT64_MAX}});
  visit("train.micro_batch", r.train.micro_batch, AutoOr<Whole>{{1, int64_t{1} << 24}});
  visit("train.global_batch", r.train.global_batch, Whole{1, kLargest});
  visit("train.precision", r.train.precision, AutoOr<Choice<Precision>>{{kPrecisionWords}});
  visit("train.optimizer", r.train.optimizer, Choice<OptimizerKind>{kOptimizerWords});
  visit("train.learning_rate", r.train.learning_rate, Real{0, kInfinity, false, true});
  visit("train.schedule", r.train.schedule, Choice<ScheduleKind>{kScheduleWords});
  visit("train.warmup", r.train.warmup, steps);
  visit("train.decay_steps", r.train.decay_steps, Absent<Whole>{{1, INT64_MAX}});
  visit("train.final_learning_rate", r.train.final_learning_rate, Real{0, kInfinity});
  visit("train.weight_decay", r.train.weight_decay, Real{0, kInfinity});
  visit("train.betas", r.train.betas, RealPair{{0, 1, true, false}});
  visit("train.epsilon", r.train.epsilon, Real{0, 1, false, true});
  visit("train.momentum", r.train.momentum, Absent<Real>{{0, 1, true, false}});
  visit("train.clip_norm", r.train.clip_norm, Real{0, kInfinity});
  visit("train.seed", r.train.seed, Whole{0, INT64_MAX});

  visit("adapter.type", r.adapter.type, Choice<AdapterKind>{kAdapterWords});
  visit("adapter.rank", r.adapter.rank, Whole{1, 65536});
  visit("adapter.alpha", r.adapter.alpha, Real{0, kInfinity, false, true});
  visit("adapter.dropout", r.adapter.dropout, Real{0, 1, true, false});
  visit("adapter.targets", r.adapter.targets, Texts{"all-linear, or a list of the names of linear layers"});
  visit("adapter.quantization", r.adapter.quantization, Choice<Quantization>{kQuantizationWords});
  visit("adapter.double_quantization", r.adapter.double_quantization, Flag{});

  visit("memory.recompute", r.memory.recompute, AutoOr<Choice<Recompute>>{{kRecomputeWords}});
  visit("memory.recompute_layers", r.memory.recompute_layers, AutoOr<Whole>{{0, 1 << 20}, "all"});
  visit("memory.moments", r.memory.moments, Choice<MomentsFormat>{kMomentsWords});
  visit("memory.master", r.memory.master, Choice<MasterFormat>{kMasterWords});
  visit("memory.gradients", r.memory.gradients, Choice<GradientsFormat>{kGradientsWords});
  visit("memory.consume_gradients", r.memory.consume_gradients, Flag{});
  visit("memory.offload", r.memory.offload, Choices<Offload>{{kOffloadWords}});
  visit("memory.loss_chunks", r.memory.loss_chunks, AutoOr<Whole>{{1, kLargest}});
  visit("memory.limit", r.memory.limit, AutoOr<Bytes>{});

  visit("parallel.data", r.parallel.data, AutoOr<Whole>{{1, 1 << 20}});
  visit("parallel.zero", r.parallel.zero, Whole{0, 3});
  visit("parallel.tensor", r.parallel.tensor, Whole{1, 1 << 20});
  visit("parallel.pipeline", r.parallel.pipeline, Whole{1, 1 << 20});
  visit("parallel.context", r.parallel.context, Whole{1, 1 << 20});
  visit("parallel.shard", r.parallel.shard, AutoOr<Whole>{{1, 1 << 20}});
  visit("parallel.schedule", r.parallel.schedule, Choice<PipelineSchedule>{kPipelineScheduleWords});
  visit("parallel.virtual_stages", r.parallel.virtual_stages, Whole{1, 1 << 20});
  visit("parallel.timeout", r.parallel.timeout, Real{1, 1e8});

  visit("device", r.device, Choice<DeviceChoice>{kDeviceWords});
  visit("threads", r.threads, AutoOr<Whole>{{1, 4096}});

  visit("checkpoint.every", r.checkpoint.every, steps);
  visit("checkpoint.keep", r.checkpoint.keep, Whole{1, 1 << 20});
  visit("evaluate.every", r.evaluate.every, steps);
  visit("log.every", r.log.every, Whole{1, INT64_MAX});
  visit("log.tensorboard", r.log.tensorboard, Flag{});
  visit("output", r.output, Text{"the folder that the run writes"});
}

}  // namespace yoke
