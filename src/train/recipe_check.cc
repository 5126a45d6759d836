#include "train/recipe_check.h"

#include "base/error.h"
#include "train/recipe_words.h"

namespace yoke {

namespace {

class Checker {
 public:
  Checker(const LoadedRecipe& loaded, const std::string& name) : origins_(loaded.origins), name_(name) {}

  /// "recipe.yaml:3:10", or the recipe's name where `key` has its default.
  const std::string& place(std::string_view key) const {
    const auto at = origins_.find(key);
    return at == origins_.end() ? name_ : at->second;
  }
  bool given(std::string_view key) const { return origins_.contains(key); }

  void required(std::string_view key, std::string_view what) const {
    if (!given(key)) fail_usage("{}: {} is missing; give {}.", name_, key, what);
  }

  void duration() const {
    std::string first;
    for (const std::string key : {"train.steps", "train.epochs", "train.tokens"}) {
      if (!given(key)) continue;
      if (!first.empty()) {
        fail_usage("{}: {} and {} are both given; a run has one length, so keep one of them.", place(key), first, key);
      }
      first = key;
    }
    if (first.empty()) {
      fail_usage("{}: the run has no length; give one of train.steps, train.epochs and train.tokens.", name_);
    }
  }

  void batch(const Recipe& recipe) const {
    if (!recipe.train.micro_batch && !given("train.global_batch")) {
      fail_usage("{}: train.micro_batch is auto; give train.global_batch, which it has to divide.",
                 place("train.micro_batch"));
    }
    const int64_t micro = recipe.train.micro_batch.value_or(1), global = recipe.train.global_batch;
    if (global % micro != 0) {
      const int64_t below = global / micro * micro;
      const std::string legal = below == 0 ? fmt::format("{}, {} or {}", micro, 2 * micro, 3 * micro)
                                           : fmt::format("{} or {}", below, below + micro);
      fail_usage("{}: train.global_batch is {}; it must be a multiple of train.micro_batch ({}), such as {}.",
                 place(given("train.global_batch") ? "train.global_batch" : "train.micro_batch"), global, micro, legal);
    }
    // Both factors are at most 2^24.
    const int64_t tokens = micro * recipe.data.sequence_length;
    if (tokens >= kLargestMicroBatchTokens) {
      fail_usage("{}: train.micro_batch {} x data.sequence_length {} are {} tokens; a micro-batch must stay below {}.",
                 place("train.micro_batch"), micro, recipe.data.sequence_length, tokens, kLargestMicroBatchTokens);
    }
    if (recipe.train.micro_batch && recipe.memory.loss_chunks.value_or(1) > tokens) {
      fail_usage("{}: memory.loss_chunks is {}; it must be auto, or at most the {} tokens of a micro-batch.",
                 place("memory.loss_chunks"), *recipe.memory.loss_chunks, tokens);
    }
  }

  void recompute(const MemoryRecipe& memory) const {
    if (memory.recompute_layers && !memory.recompute) {
      fail_usage(
          "{}: memory.recompute_layers is {}, but memory.recompute is auto, which finds the layers itself; name "
          "what to recompute, or leave recompute_layers out.",
          place("memory.recompute_layers"), *memory.recompute_layers);
    }
  }

  void formats(const Recipe& recipe) const {
    const auto needs_bf16 = [&](std::string_view key, bool asked, std::string_view value, std::string_view why) {
      if (!asked || recipe.train.precision == Precision::bf16) return;
      const std::string_view precision =
          recipe.train.precision ? word_of<Precision>(*recipe.train.precision, kPrecisionWords) : "auto";
      fail_usage("{}: {} is {}, {}; train.precision is {} and must be bf16 for that.", place(key), key, value, why,
                 precision);
    };
    const MemoryRecipe& memory = recipe.memory;
    const std::string_view optimizer = word_of<OptimizerKind>(recipe.train.optimizer, kOptimizerWords);
    if (recipe.train.optimizer == OptimizerKind::adafactor && memory.moments != MomentsFormat::fp32) {
      fail_usage(
          "{}: memory.moments is {}; train.optimizer adafactor keeps no moment of a matrix but its rows' and columns' "
          "means, which are fp32: use fp32.",
          place("memory.moments"), word_of<MomentsFormat>(memory.moments, kMomentsWords));
    }
    const bool has_momentum =
        recipe.train.optimizer == OptimizerKind::muon || recipe.train.optimizer == OptimizerKind::sgd;
    if (recipe.train.momentum && !has_momentum) {
      fail_usage("{}: train.momentum is for the optimizers muon and sgd; train.optimizer is {}. Leave it out.",
                 place("train.momentum"), optimizer);
    }
    needs_bf16("memory.master", memory.master == MasterFormat::none, "none", "which keeps the weights in bf16 alone");
    needs_bf16("memory.gradients", memory.gradients == GradientsFormat::bf16, "bf16", "which sums gradients in bf16");
    if (!memory.consume_gradients) return;
    const std::string& at = place("memory.consume_gradients");
    if (recipe.train.micro_batch && recipe.train.global_batch != *recipe.train.micro_batch) {
      fail_usage(
          "{}: memory.consume_gradients is true, so that nothing can accumulate; train.global_batch is {} and must be "
          "train.micro_batch, which is {}.",
          at, recipe.train.global_batch, *recipe.train.micro_batch);
    }
    if (recipe.train.global_batch > (kLargestMicroBatchTokens - 1) / recipe.data.sequence_length) {
      fail_usage(
          "{}: memory.consume_gradients is true, so that train.global_batch ({}) is one micro-batch; it must stay "
          "below {} tokens.",
          at, recipe.train.global_batch, kLargestMicroBatchTokens);
    }
    if (recipe.train.precision == Precision::fp16) {
      fail_usage(
          "{}: memory.consume_gradients is true; train.precision fp16 must be able to skip whole steps when its loss "
          "scale overflows, so bf16 and fp32 are legal with it.",
          at);
    }
  }

  void pipeline(const Recipe& recipe) const {
    const ParallelRecipe& parallel = recipe.parallel;
    const std::string_view schedule = word_of<PipelineSchedule>(parallel.schedule, kPipelineScheduleWords);
    const bool interleaved = parallel.schedule == PipelineSchedule::interleaved;
    if (parallel.virtual_stages > 1 && !interleaved) {
      fail_usage(
          "{}: parallel.virtual_stages is {}; parallel.schedule {} has one piece of layers a rank: use 1, or the "
          "schedule interleaved.",
          place("parallel.virtual_stages"), parallel.virtual_stages, schedule);
    }
    if (parallel.virtual_stages > 1 && parallel.pipeline == 1) {
      fail_usage("{}: parallel.virtual_stages is {}; parallel.pipeline is 1, and one rank has all layers: use 1.",
                 place("parallel.virtual_stages"), parallel.virtual_stages);
    }
    if (interleaved && parallel.virtual_stages == 1 && parallel.pipeline > 1) {
      fail_usage(
          "{}: parallel.schedule is interleaved; it needs parallel.virtual_stages from 2 on, found 1, with which it is "
          "1f1b.",
          place("parallel.schedule"));
    }
    if (recipe.memory.consume_gradients && parallel.pipeline > 1) {
      fail_usage(
          "{}: memory.consume_gradients is true, which leaves a step one micro-batch; parallel.pipeline is {}, and "
          "stages would do nothing but wait for each other: use parallel.pipeline 1.",
          place("memory.consume_gradients"), parallel.pipeline);
    }
  }

  void learning_rate(const TrainRecipe& train) const {
    if (train.schedule == ScheduleKind::wsd && !train.decay_steps) {
      fail_usage("{}: schedule wsd needs train.decay_steps, the number of steps at the end in which the rate falls.",
                 place("train.schedule"));
    }
    if (train.schedule != ScheduleKind::constant && train.final_learning_rate > train.learning_rate) {
      fail_usage("{}: train.final_learning_rate is {}; it must be at most train.learning_rate, which is {}.",
                 place("train.final_learning_rate"), train.final_learning_rate, train.learning_rate);
    }
    if (!train.steps) return;
    try {
      check_schedule(train, *train.steps);
    } catch (const UserError& error) {
      fail_usage("{}: {}", place(given("train.warmup") ? "train.warmup" : "train.decay_steps"), error.what());
    }
  }

 private:
  const RecipeOrigins& origins_;
  const std::string& name_;
};

[[noreturn]] void not_built(std::string_view key, std::string_view value, std::string_view instead) {
  fail_usage("{}: {} is legal, but not built yet in this version of yoke; use {}.", key, value, instead);
}

}  // namespace

void check_recipe(const LoadedRecipe& loaded, const std::string& name) {
  const Checker check(loaded, name);
  check.required("model.path", "the folder that holds the model's config.json");
  check.required("data.train", "a file, glob or folder, or a list of them");
  check.duration();
  check.batch(loaded.recipe);
  check.recompute(loaded.recipe.memory);
  check.formats(loaded.recipe);
  check.pipeline(loaded.recipe);
  check.learning_rate(loaded.recipe.train);
}

void check_schedule(const TrainRecipe& train, int64_t steps) {
  if (train.warmup > steps) {
    fail_usage("train.warmup is {} steps; it must be at most the run's {} steps.", train.warmup, steps);
  }
  const bool decays = train.schedule != ScheduleKind::constant && train.decay_steps;
  if (decays && *train.decay_steps > steps - train.warmup) {
    fail_usage("train.decay_steps is {}; warm-up and decay must fit into the run: at most {} - {} = {} are legal.",
               *train.decay_steps, steps, train.warmup, steps - train.warmup);
  }
}

void check_supported(const Recipe& recipe) {
  const DataFormat format = recipe.data.format;
  if (format == DataFormat::chat || format == DataFormat::alpaca || format == DataFormat::sharegpt) {
    not_built("data.format", word_of<DataFormat>(format, kDataFormatWords), "text, jsonl or tokens");
  }
  if (recipe.adapter.type != AdapterKind::none) {
    not_built("adapter.type", word_of<AdapterKind>(recipe.adapter.type, kAdapterWords), "none");
  }
  if (!recipe.memory.offload.empty()) {
    not_built("memory.offload", word_of<Offload>(recipe.memory.offload[0], kOffloadWords), "none");
  }
  if (recipe.device == DeviceChoice::cuda) not_built("device", "cuda", "cpu");
  if (recipe.log.tensorboard) not_built("log.tensorboard", "true", "false");
}

}  // namespace yoke
