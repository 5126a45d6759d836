#include "train/settings.h"

#include <algorithm>

#include "train/recipe_words.h"

namespace yoke {

namespace {

int64_t recomputed_layers(const ModelConfig& model, const EngineOptions& options) {
  if (options.recompute == Recompute::none) return 0;
  return options.recompute_layers < 0 ? model.layers : options.recompute_layers;
}

int64_t loss_chunk(const ModelConfig& model, const EngineOptions& options) {
  const int64_t tokens = options.tokens();
  return options.loss_chunk > 0 ? std::min(options.loss_chunk, tokens)
                                : default_loss_chunk(model, options.compute, tokens);
}

std::string_view optimizer_word(const EngineOptions& options) {
  return word_of<OptimizerKind>(options.optimizer.kind, kOptimizerWords);
}
std::string_view moments_word(const EngineOptions& options) {
  return word_of<MomentsFormat>(options.optimizer.moments, kMomentsWords);
}
std::string_view master_word(const EngineOptions& options) {
  return word_of<MasterFormat>(options.fp32_master ? MasterFormat::fp32 : MasterFormat::none, kMasterWords);
}
std::string_view gradients_word(const EngineOptions& options) {
  const auto format = options.gradients == DType::bf16 ? GradientsFormat::bf16 : GradientsFormat::fp32;
  return word_of<GradientsFormat>(format, kGradientsWords);
}

}  // namespace

std::string settings_text(const ModelConfig& model, const EngineOptions& options) {
  const int64_t layers = recomputed_layers(model, options);
  std::string text = fmt::format("{} x {} sequences a step, ", options.micro_batches, options.micro_batch);
  text += layers == 0 ? "nothing recomputed"
                      : fmt::format("recompute {} in {} of {} layers",
                                    word_of<Recompute>(options.recompute, kRecomputeWords), layers, model.layers);
  text += fmt::format(", loss in chunks of {} tokens", loss_chunk(model, options));
  const EngineOptions initial;
  if (options.optimizer.kind != initial.optimizer.kind) text += fmt::format(", {}", optimizer_word(options));
  if (options.optimizer.moments != initial.optimizer.moments)
    text += fmt::format(", moments {}", moments_word(options));
  if (options.fp32_master != initial.fp32_master) text += fmt::format(", master {}", master_word(options));
  if (options.gradients != initial.gradients) text += fmt::format(", gradients {}", gradients_word(options));
  if (options.consume_gradients) text += ", gradients consumed in backward";
  return text;
}

nlohmann::json settings_json(const ModelConfig& model, const EngineOptions& options) {
  return {{"micro_batch", options.micro_batch},
          {"micro_batches", options.micro_batches},
          {"recompute", word_of<Recompute>(options.recompute, kRecomputeWords)},
          {"recompute_layers", recomputed_layers(model, options)},
          {"loss_chunk", loss_chunk(model, options)},
          {"optimizer", optimizer_word(options)},
          {"moments", moments_word(options)},
          {"master", master_word(options)},
          {"gradients", gradients_word(options)},
          {"consume_gradients", options.consume_gradients}};
}

}  // namespace yoke
