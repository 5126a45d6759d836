#include "train/training_checkpoint.h"

#include <algorithm>

#include "base/log.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/together.h"
#include "checkpoint/training_state.h"
#include "train/held_state.h"
#include "train/recipe_words.h"

namespace yoke {

namespace {

std::filesystem::path checkpoint_folder(const RunSetup& run) {
  return std::filesystem::path(run.recipe().output) / "checkpoints";
}

/// What has to be the same for a state to make sense.
nlohmann::json identity(const RunSetup& run) {
  return {{"model", make_hf_config(run.config.model, nullptr, DType::f32)},
          {"data", run.data.fingerprint},
          {"seed", run.recipe().train.seed}};
}

nlohmann::json to_json(const TrainingState& s) {
  return {{"step", s.step},
          {"skipped", s.skipped},
          {"tokens", s.tokens},
          {"loader", {{"epoch", s.loader.epoch}, {"position", s.loader.position}}},
          {"loss_scale",
           {{"scale", s.scaler.scale}, {"good_steps", s.scaler.good_steps}, {"hysteresis", s.scaler.hysteresis}}}};
}

TrainingState from_json(const nlohmann::json& j) {
  TrainingState s;
  j.at("step").get_to(s.step);
  j.at("skipped").get_to(s.skipped);
  j.at("tokens").get_to(s.tokens);
  j.at("loader").at("epoch").get_to(s.loader.epoch);
  j.at("loader").at("position").get_to(s.loader.position);
  const nlohmann::json& scale = j.at("loss_scale");
  scale.at("scale").get_to(s.scaler.scale);
  scale.at("good_steps").get_to(s.scaler.good_steps);
  scale.at("hysteresis").get_to(s.scaler.hysteresis);
  return s;
}

/// What decides which tensors a state has and what they mean.
nlohmann::json formats(const Recipe& recipe) {
  return {
      {"train.optimizer", word_of<OptimizerKind>(recipe.train.optimizer, kOptimizerWords)},
      {"train.momentum", recipe.train.optimizer == OptimizerKind::sgd && recipe.train.momentum == 0 ? "0" : "above 0"},
      {"memory.moments", word_of<MomentsFormat>(recipe.memory.moments, kMomentsWords)},
      {"memory.master", word_of<MasterFormat>(recipe.memory.master, kMasterWords)}};
}

/// How a state is divided is no part of its identity; only what was settled for one layout may not suit another.
nlohmann::json layout(const EngineOptions& engine) {
  const MeshSizes& mesh = engine.mesh;
  return {{"data", mesh.data},     {"context", mesh.context}, {"pipeline", mesh.pipeline},
          {"tensor", mesh.tensor}, {"shard", mesh.shard},     {"zero", engine.zero}};
}

nlohmann::json settled(const EngineOptions& engine) {
  nlohmann::json settled = {{"micro_batch", engine.micro_batch}, {"loss_chunk", engine.loss_chunk}};
  if (engine.mesh.ranks() > 1) settled["layout"] = layout(engine);
  return settled;
}

/// Whether what a checkpoint says was settled by a run of this layout.
bool same_layout(const nlohmann::json& settled, const EngineOptions& engine) {
  const bool alone = !settled.contains("layout");
  return alone ? engine.mesh.ranks() == 1 : engine.mesh.ranks() > 1 && settled.at("layout") == layout(engine);
}

void check_identity(const RunSetup& run, const Checkpoint& checkpoint) {
  const nlohmann::json want = identity(run), found = checkpoint.state().at("identity");
  for (const auto& [key, what] : {std::pair("model", "model.path: the model's config"),
                                  std::pair("data", "data: files, tokenizer, sequence length, packing or validation"),
                                  std::pair("seed", "train.seed")}) {
    if (want.at(key) == found.at(key)) continue;
    fail_usage(
        "{} was saved by a run with another setting of {}. Restore that setting, or start anew in another "
        "output folder.",
        checkpoint.path().string(), what);
  }
  // Checkpoints of before there was a choice have no entry.
  const nlohmann::json want_formats = formats(run.recipe()),
                       found_formats = checkpoint.state().value("formats", formats(Recipe{}));
  for (const auto& [key, value] : want_formats.items()) {
    const std::string setting = value.get<std::string>(), saved = found_formats.at(key).get<std::string>();
    if (setting == saved) continue;
    fail_usage(
        "{} was saved by a run with {} {}, this one has {}. Use --{} {}, or start anew in another output folder.",
        checkpoint.path().string(), key, saved, setting, key, saved);
  }
}

}  // namespace

void save_run(const RunSetup& run, const Engine& engine, Context& ctx, const TrainingState& state) {
  const HeldState held(engine, ctx);
  save_checkpoint(engine.parallel(), checkpoint_folder(run), state.step,
                  {{"identity", identity(run)},
                   {"formats", formats(run.recipe())},
                   {"settled", settled(engine.options())},
                   {"training", to_json(state)}},
                  held.pieces(), static_cast<int>(run.recipe().checkpoint.keep));
}

PinnedSettings saved_settings(const RunSetup& run) {
  if (run.resume == "none") return {};
  std::filesystem::path path = run.resume;
  if (run.resume == "auto") {
    const auto found = find_checkpoints(checkpoint_folder(run), CheckDepth::sizes);
    const auto whole = std::find_if(found.begin(), found.end(), [](const auto& entry) { return entry.fault.empty(); });
    if (whole == found.end()) return {};
    path = whole->path;
  }
  const nlohmann::json state = checkpoint_state(path);
  const nlohmann::json settled =
      state.is_object() && state.contains("settled") ? state.at("settled") : nlohmann::json();
  const auto number = [&](const char* key) {
    return settled.is_object() && settled.contains(key) && settled.at(key).is_number_integer()
               ? settled.at(key).get<int64_t>()
               : 0;
  };
  if (settled.is_object() && !same_layout(settled, run.engine)) return {};
  return {.micro_batch = number("micro_batch"), .loss_chunk = number("loss_chunk")};
}

std::optional<TrainingState> load_run(const RunSetup& run, Engine& engine, Context& ctx) {
  const std::string& resume = run.resume;
  const std::filesystem::path folder = checkpoint_folder(run);
  const Parallel& parallel = engine.parallel();
  on_first(parallel, [&] {
    clean_checkpoints(folder);
    const auto found = find_checkpoints(folder, CheckDepth::sizes);
    if (resume == "none" && !found.empty()) {
      fail_usage(
          "{} holds checkpoints of an earlier run, the newest of step {}. Continue it with --resume auto, or set "
          "another output.",
          folder.string(), found.front().step);
    }
    return std::string();
  });
  if (resume == "none") return std::nullopt;
  const auto checkpoint =
      resume == "auto" ? Checkpoint::newest(folder, parallel) : std::make_unique<Checkpoint>(resume, parallel);
  if (!checkpoint) return std::nullopt;
  TrainingState state;
  try {
    check_identity(run, *checkpoint);
    state = from_json(checkpoint->state().at("training"));
  } catch (const nlohmann::json::exception&) {
    fail_file("{}: is not a checkpoint of yoke train.", checkpoint->path().string());
  }
  const HeldState held(engine, ctx);
  together(parallel, [&] {
    held.read(*checkpoint);
    return std::string();
  });
  engine.refresh_weights(ctx);
  if (parallel.first()) log::info("resumed from {} (step {})", checkpoint->path().string(), state.step);
  return state;
}

bool is_checkpoint_of(const Checkpoint& checkpoint, const ModelConfig& model) {
  const nlohmann::json& state = checkpoint.state();
  return state.is_object() && state.contains("identity") && state.at("identity").is_object() &&
         state.at("identity").value("model", nlohmann::json()) == make_hf_config(model, nullptr, DType::f32);
}

void load_pretrained(const RunSetup& run, Engine& engine, Context& ctx) {
  const ParameterTable whole(run.config.model);
  const HeldState held(engine, ctx);
  together(engine.parallel(), [&] {
    held.read_weights(WeightReader(run.recipe().model.path, whole));
    return std::string();
  });
  engine.refresh_weights(ctx);
  engine.clear_optimizer(ctx);
}

std::vector<std::filesystem::path> carried_files(const Recipe& recipe, std::filesystem::path tokenizer) {
  if (tokenizer == "bytes") {
    tokenizer = std::filesystem::path(recipe.output) / "tokenizer";
    std::filesystem::create_directories(tokenizer);
    write_byte_tokenizer(tokenizer);
  }
  auto files = std::filesystem::is_directory(tokenizer) ? tokenizer_files(tokenizer) : std::vector{tokenizer};
  const auto generation = std::filesystem::path(recipe.model.path) / "generation_config.json";
  if (std::filesystem::exists(generation)) files.push_back(generation);
  return files;
}

void export_model(const RunSetup& run, const Engine& engine, Context& ctx, const std::filesystem::path& folder) {
  const Parallel& parallel = engine.parallel();
  HfModelOptions options{.dtype = engine.options().compute};
  on_first(parallel, [&] {
    options.carried = carried_files(run.recipe(), run.tokenizer_path);
    return std::string();
  });
  const ParameterTable whole(run.config.model);
  const HeldState held(engine, ctx);
  write_hf_model(parallel, folder, run.config.model, run.config.document, whole, held.weights(), options);
  if (parallel.first()) log::info("model written to {}", folder.string());
}

}  // namespace yoke
