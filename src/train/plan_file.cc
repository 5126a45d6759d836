#include "train/plan_file.h"

#include "base/file.h"
#include "train/settings.h"

namespace yoke {

nlohmann::json predicted_json(const ModelConfig& model, const EngineOptions& options, const EnginePlan& plan,
                              size_t resident_bytes) {
  nlohmann::json items = nlohmann::json::array();
  for (const PlanItem& item : plan.items()) {
    items.push_back({{"name", item.name}, {"kind", name_of(item.kind)}, {"count", item.count}, {"bytes", item.bytes}});
  }
  return {{"settings", settings_json(model, options)},
          {"peak_bytes", plan.peak_bytes},
          {"resident_bytes", resident_bytes},
          {"step_seconds", plan.step_seconds},
          {"step_flops", plan.step_flops},
          {"peak_moment", plan.peak_text()},
          {"items", items}};
}

void write_plan(const std::filesystem::path& path, const RunSetup& run, const Measured* measured) {
  nlohmann::json document{{"predicted", predicted_json(run.config.model, run.engine, run.plan, run.planned_resident())},
                          {"measured", nullptr}};
  const bool several = run.ranks.mesh.ranks() > 1;
  if (several) document["predicted"]["rank_peak_bytes"] = run.rank_peaks;
  if (measured != nullptr) {
    document["measured"] = {{"peak_bytes", measured->peak_bytes},
                            {"resident_bytes", measured->resident_bytes},
                            {"step_seconds", measured->step_seconds}};
    if (several) document["measured"]["rank_peak_bytes"] = measured->rank_peaks;
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
