#include "train/plan_file.h"

#include <algorithm>
#include <map>

#include "base/file.h"

namespace yoke {

namespace {

/// Bytes at the peak by name, largest first.
std::vector<std::pair<std::string, size_t>> items_at_peak(const RunSetup& run) {
  std::map<std::string, size_t> sums;
  for (const Arena::Allocation& item : run.plan.alive_at_peak) sums[item.name] += item.bytes;
  std::vector<std::pair<std::string, size_t>> items(sums.begin(), sums.end());
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return items;
}

}  // namespace

nlohmann::json predicted_json(const RunSetup& run) {
  nlohmann::json items = nlohmann::json::array();
  for (const auto& [name, bytes] : items_at_peak(run)) items.push_back({{"name", name}, {"bytes", bytes}});
  return {{"peak_bytes", run.plan.peak_bytes},
          {"resident_bytes", run.planned_resident()},
          {"step_seconds", run.plan.step_seconds},
          {"step_flops", run.plan.step_flops},
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
  for (const auto& [name, bytes] : items_at_peak(run)) text += fmt::format("{:<28} {:>12.2f}\n", name, mib(bytes));
  text += fmt::format("{:<28} {:>12.2f}\n", "arena", mib(run.plan.peak_bytes));
  text += fmt::format("{:<28} {:>12.2f}\n", "process, arena included", mib(run.planned_resident()));
  text += fmt::format("{} steps, each at least {:.3f} s at {:.0f} GFLOP/s and {:.0f} GB/s\n", run.steps,
                      run.plan.step_seconds, run.rates.flops_per_second * 1e-9, run.rates.bytes_per_second * 1e-9);
  return text;
}

}  // namespace yoke
