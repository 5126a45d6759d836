#include "train/training_checkpoint.h"

#include <algorithm>

#include "base/log.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/training_state.h"
#include "device/transfer.h"
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

struct StateTensor {
  std::string name;
  TensorView view;
};

std::vector<StateTensor> state_tensors(const Engine& engine) {
  const ParameterTable& table = engine.transformer().parameters();
  std::vector<StateTensor> tensors;
  for (size_t i = 0; i < table.size(); ++i) tensors.push_back({"weights." + table[i].name, engine.master()[i]});
  for (const OptimizerState::Tensor& tensor : engine.optimizer_state().tensors()) {
    tensors.push_back({fmt::format("{}.{}", tensor.row.name, table[tensor.parameter].name), tensor.view});
  }
  return tensors;
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
  std::vector<StatePiece> pieces;
  for (const StateTensor& state_tensor : state_tensors(engine)) {
    const TensorView tensor = state_tensor.view;
    const auto view = [&ctx, tensor] {
      TensorView host;
      read_through_host(ctx, tensor, [&](const TensorView& t) { host = t; });
      return host;
    };
    pieces.push_back({.name = state_tensor.name,
                      .dtype = tensor.dtype,
                      .global = tensor.shape,
                      .region = Region::whole(tensor.shape),
                      .view = view});
  }
  save_checkpoint(
      checkpoint_folder(run), state.step,
      {{"identity", identity(run)},
       {"formats", formats(run.recipe())},
       {"settled", {{"micro_batch", engine.options().micro_batch}, {"loss_chunk", engine.options().loss_chunk}}},
       {"training", to_json(state)}},
      pieces, static_cast<int>(run.recipe().checkpoint.keep));
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
  return {.micro_batch = number("micro_batch"), .loss_chunk = number("loss_chunk")};
}

std::optional<TrainingState> load_run(const RunSetup& run, Engine& engine, Context& ctx) {
  const std::string& resume = run.resume;
  const std::filesystem::path folder = checkpoint_folder(run);
  clean_checkpoints(folder);
  std::unique_ptr<Checkpoint> checkpoint;
  if (resume == "none") {
    const auto found = find_checkpoints(folder, CheckDepth::sizes);
    if (found.empty()) return std::nullopt;
    fail_usage(
        "{} holds checkpoints of an earlier run, the newest of step {}. Continue it with --resume auto, or set "
        "another output.",
        folder.string(), found.front().step);
  }
  if (resume == "auto") {
    checkpoint = Checkpoint::newest(folder);
    if (!checkpoint) return std::nullopt;
  } else {
    checkpoint = std::make_unique<Checkpoint>(resume);
  }
  TrainingState state;
  try {
    check_identity(run, *checkpoint);
    state = from_json(checkpoint->state().at("training"));
  } catch (const nlohmann::json::exception&) {
    fail_file("{}: is not a checkpoint of yoke train.", checkpoint->path().string());
  }
  for (const auto& [name, tensor] : state_tensors(engine)) {
    write_through_host(ctx, tensor, [&](const TensorView& host) {
      checkpoint->read(name, host.shape, Region::whole(host.shape), host);
    });
  }
  engine.refresh_weights(ctx);
  log::info("resumed from {} (step {})", checkpoint->path().string(), state.step);
  return state;
}

void load_pretrained(const RunSetup& run, Engine& engine, Context& ctx) {
  const WeightReader reader(run.recipe().model.path, engine.transformer().parameters());
  for (size_t i = 0; i < engine.master().size(); ++i) {
    write_through_host(ctx, engine.master()[i], [&](const TensorView& host) { reader.read(i, host); });
  }
  engine.refresh_weights(ctx);
  engine.clear_optimizer(ctx);
}

void export_model(const RunSetup& run, const Engine& engine, Context& ctx, const std::filesystem::path& folder) {
  HfModelOptions options{.dtype = engine.options().compute};
  std::filesystem::path tokenizer = run.tokenizer_path;
  if (tokenizer == "bytes") {
    tokenizer = std::filesystem::path(run.recipe().output) / "tokenizer";
    std::filesystem::create_directories(tokenizer);
    write_byte_tokenizer(tokenizer);
  }
  options.carried = std::filesystem::is_directory(tokenizer) ? tokenizer_files(tokenizer) : std::vector{tokenizer};
  const auto generation = std::filesystem::path(run.recipe().model.path) / "generation_config.json";
  if (std::filesystem::exists(generation)) options.carried.push_back(generation);
  const auto view = [&](size_t row) {
    TensorView host;
    read_through_host(ctx, engine.master()[row], [&](const TensorView& t) { host = t; });
    return host;
  };
  write_hf_model(folder, run.config.model, run.config.document, engine.transformer().parameters(), view, options);
  log::info("model written to {}", folder.string());
}

}  // namespace yoke
