#include "train/plan_file.h"

#include "base/file.h"
#include "train/recipe_words.h"

namespace yoke {

namespace {

int64_t recomputed_layers(const RunSetup& run) {
  if (run.engine.recompute == Recompute::none) return 0;
  return run.engine.recompute_layers < 0 ? run.config.model.layers : run.engine.recompute_layers;
}

int64_t loss_chunk(const RunSetup& run) {
  const int64_t tokens = run.engine.micro_batch * run.engine.sequence_length;
  return run.engine.loss_chunk > 0 ? run.engine.loss_chunk
                                   : default_loss_chunk(run.config.model, run.engine.compute, tokens);
}

}  // namespace

std::string settings_text(const RunSetup& run) {
  const int64_t layers = recomputed_layers(run);
  const std::string recompute = layers == 0 ? "nothing recomputed"
                                            : fmt::format("recompute {} in {} of {} layers",
                                                          word_of<Recompute>(run.engine.recompute, kRecomputeWords),
                                                          layers, run.config.model.layers);
  return fmt::format("{} x {} sequences a step, {}, loss in chunks of {} tokens", run.engine.micro_batches,
                     run.engine.micro_batch, recompute, loss_chunk(run));
}

nlohmann::json predicted_json(const RunSetup& run) {
  nlohmann::json items = nlohmann::json::array();
  for (const PlanItem& item : run.plan.items()) {
    items.push_back({{"name", item.name}, {"kind", name_of(item.kind)}, {"count", item.count}, {"bytes", item.bytes}});
  }
  const nlohmann::json settings{{"micro_batch", run.engine.micro_batch},
                                {"micro_batches", run.engine.micro_batches},
                                {"recompute", word_of<Recompute>(run.engine.recompute, kRecomputeWords)},
                                {"recompute_layers", recomputed_layers(run)},
                                {"loss_chunk", loss_chunk(run)}};
  return {{"settings", settings},
          {"peak_bytes", run.plan.peak_bytes},
          {"resident_bytes", run.planned_resident()},
          {"step_seconds", run.plan.step_seconds},
          {"step_flops", run.plan.step_flops},
          {"peak_moment", run.plan.peak_text()},
          {"items", items}};
}

void write_plan(const std::filesystem::path& path, const RunSetup& run, const Measured* measured) {
  nlohmann::json document{{"predicted", predicted_json(run)}, {"measured", nullptr}};
  if (measured != nullptr) {
    document["measured"] = {{"peak_bytes", measured->peak_bytes},
                            {"resident_bytes", measured->resident_bytes},
                            {"step_seconds", measured->step_seconds}};
  }
  write_file(path, document.dump(2) + "\n");
}

std::string plan_table(const RunSetup& run) {
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
  std::string text = fmt::format("{:<28} {:>12}\n", "alive at the peak", "MiB");
  for (const PlanItem& item : run.plan.items()) {
    text += fmt::format("{:<28} {:>12.2f}\n", item.name, mib(item.bytes));
  }
  text += fmt::format("{:<28} {:>12.2f}\n", "arena", mib(run.plan.peak_bytes));
  text += fmt::format("{:<28} {:>12.2f}\n", "process, arena included", mib(run.planned_resident()));
  text += fmt::format("{} steps, each at least {:.3f} s at {:.0f} GFLOP/s and {:.0f} GB/s\n", run.steps,
                      run.plan.step_seconds, run.rates.flops_per_second * 1e-9, run.rates.bytes_per_second * 1e-9);
  return text;
}

}  // namespace yoke
