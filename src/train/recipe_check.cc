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
  if (recipe.memory.moments != MomentsFormat::fp32) {
    not_built("memory.moments", word_of<MomentsFormat>(recipe.memory.moments, kMomentsWords), "fp32");
  }
  if (!recipe.memory.offload.empty()) {
    not_built("memory.offload", word_of<Offload>(recipe.memory.offload[0], kOffloadWords), "none");
  }
  const ParallelRecipe& parallel = recipe.parallel;
  if (parallel.zero > 1) not_built("parallel.zero", std::to_string(parallel.zero), "0 or 1");
  const std::pair<const char*, int64_t> axes[] = {{"parallel.data", parallel.data.value_or(1)},
                                                  {"parallel.tensor", parallel.tensor},
                                                  {"parallel.pipeline", parallel.pipeline},
                                                  {"parallel.context", parallel.context}};
  for (const auto& [key, ranks] : axes) {
    if (ranks > 1) not_built(key, std::to_string(ranks), "1");
  }
  if (recipe.device == DeviceChoice::cuda) not_built("device", "cuda", "cpu");
  if (recipe.log.tensorboard) not_built("log.tensorboard", "true", "false");
}

}  // namespace yoke
