// yoke train: from a recipe to a trained model folder.
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "train/commands.h"
#include "train/plan_file.h"
#include "train/settings.h"
#include "train/trainer.h"
#include "train/training_checkpoint.h"

namespace yoke {

namespace {

std::string profile_table(const Stream& stream) {
  double total = 0;
  for (const auto& [op, t] : stream.totals()) total += t.seconds;
  std::string text = fmt::format("{:<22} {:>9} {:>10} {:>7} {:>10} {:>8}\n", "operation", "calls", "seconds", "share",
                                 "GFLOP/s", "GB/s");
  for (const auto& [op, t] : stream.totals()) {
    if (t.seconds == 0) continue;
    text += fmt::format("{:<22} {:>9} {:>10.3f} {:>6.1f}% {:>10.1f} {:>8.1f}\n", op, t.calls, t.seconds,
                        100 * t.seconds / total, t.flops / t.seconds * 1e-9, t.bytes / t.seconds * 1e-9);
  }
  return text;
}

}  // namespace

int train(const TrainOptions& options) {
  const RunSetup run = set_up(load_recipe(options.recipe, options.overrides), options.resume);
  const std::filesystem::path output = run.recipe().output;
  log::info("{}: {} parameters, {}, {} on {}", run.recipe().model.path, run.config.model.parameters(),
            run.recipe().model.init == Initialisation::random ? "random weights" : "pretrained weights",
            name_of(run.engine.compute), run.device.str());
  log::info("data: {} rows of {} tokens{}; {} steps of {} sequences", run.data.train->rows(),
            run.engine.sequence_length,
            run.data.validation ? fmt::format(", {} held out", run.data.validation->rows()) : "", run.steps,
            run.recipe().train.global_batch);
  log::info("memory: {}; {:.1f} MiB planned", settings_text(run.config.model, run.engine),
            static_cast<double>(run.planned_resident()) / 0x1p20);
  std::error_code failure;
  std::filesystem::create_directories(output, failure);
  if (failure) fail_file("{}: can't be made: {}.", output.string(), failure.message());
  const auto write_files = [&] {
    write_file(output / "recipe.yaml", resolved_yaml(run.loaded));
    write_plan(output / "plan.json", run, nullptr);
  };
  if (options.dry_run) {
    // A folder that holds a run keeps the recipe and the plan of that run.
    if (!std::filesystem::exists(output / "metrics.jsonl")) write_files();
    fmt::print("{}", plan_table(run));
    return 0;
  }

  require_memory(run);  // others may have taken what was free when the run was planned
  const MemoryBlock block(run.plan.peak_bytes);
  block.commit(run.device.threads());
  Arena arena(block.data(), block.bytes());
  Stream stream;
  stream.profiled = options.profile;
  Context ctx{run.device, stream, arena};
  Engine engine(ctx, run.config.model, run.engine);
  Trainer trainer(run, ctx, engine);
  const auto state = load_run(run, engine, ctx);
  write_files();  // not before: a run that is refused leaves the files of the earlier run alone
  if (state) {
    trainer.restore(*state);
  } else if (run.recipe().model.init == Initialisation::random) {
    engine.initialise(ctx, static_cast<uint64_t>(run.recipe().train.seed));
  } else {
    load_pretrained(run, engine, ctx);
  }
  stream.clear_totals();
  const ExitCode code = trainer.train();
  if (options.profile) fmt::print(stderr, "{}", profile_table(stream));
  return static_cast<int>(code);
}

}  // namespace yoke
