#include "plan/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <locale>

#include "train/pipeline_stages.h"
#include "train/plan_file.h"
#include "train/recipe_words.h"
#include "train/settings.h"

namespace yoke {

namespace {

/// 8030261248 as 8,030,261,248.
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string seconds_text(double seconds) {
  if (seconds >= 7200) return fmt::format("{:.3g} h", seconds / 3600);
  return seconds >= 1 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.3g} ms", 1000 * seconds);
}

/// "one rank"; "16 ranks: data 2 x tensor 8, ZeRO-1"
std::string mesh_text(const EngineOptions& e) {
  const MeshSizes& m = e.mesh;
  if (m.ranks() == 1) return "one rank";
  std::vector<std::string> axes;
  for (const auto& [name, size] :
       {std::pair{"data", m.data}, {"context", m.context}, {"pipeline", m.pipeline}, {"tensor", m.tensor}}) {
    if (size > 1) axes.push_back(fmt::format("{} {}", name, size));
  }
  std::string text = fmt::format("{} ranks: {}", m.ranks(), fmt::join(axes, " x "));
  if (m.replicas() == 1) return text;
  text += e.zero == 0 ? ", ZeRO off" : fmt::format(", ZeRO-{}", e.zero);
  return e.zero > 0 && m.shards() < m.replicas() ? text + fmt::format(" in shards over {}", m.shards()) : text;
}

/// "rank 3 (pipeline 1, tensor 0)"
std::string rank_text(const MemoryPlan& p, int rank) {
  return fmt::format("rank {} ({})", rank, Mesh(p.engine.mesh, rank).place_text());
}

/// Each stage's peak, with what is outside the arena: the one in the table is the highest.
std::string stages_table(const MemoryPlan& p) {
  std::string text = fmt::format("the table is that of {}, which takes most\n", rank_text(p, p.plan.rank));
  if (p.plan.stages.size() == 1) return text;
  text += fmt::format("{:<14} {:<34} {:>14} {:>14}\n", "pipeline rank", "most on", "state", "all");
  for (size_t s = 0; s < p.plan.stages.size(); ++s) {
    const StagePlan& stage = p.plan.stages[s];
    const size_t needed = stage.peak_bytes + p.outside_bytes();
    text += fmt::format("{:<14} {:<34} {:>14} {:>14}{}\n", s, rank_text(p, stage.rank), bytes_text(stage.state_bytes),
                        bytes_text(needed), needed <= p.capacity ? "" : "  does not fit");
  }
  return text;
}

/// " Pipeline ranks 0 and 1 of 4 don't fit."
std::string misfit_stages(const MemoryPlan& p) {
  std::vector<size_t> large;
  for (size_t s = 0; s < p.plan.stages.size(); ++s) {
    if (p.plan.stages[s].peak_bytes + p.outside_bytes() > p.capacity) large.push_back(s);
  }
  if (p.plan.stages.size() == 1) return "";
  return fmt::format(" Of {} pipeline ranks {} {} not fit.", p.plan.stages.size(), fmt::join(large, ", "),
                     large.size() == 1 ? "does" : "do");
}

/// What a rank sends in a step, by group of ranks.
std::string traffic_lines(const MemoryPlan& p) {
  std::string text;
  for (size_t g = 0; g < kGroups; ++g) {
    const Traffic& t = p.plan.traffic[g];
    if (t.collectives == 0) continue;
    text += fmt::format("sent in a step over {}: {} in {} messages{}\n", kGroupNames[g],
                        bytes_text(static_cast<size_t>(t.bytes)), t.collectives,
                        t.waited > 0 ? fmt::format(", waited for {}", seconds_text(t.waited)) : "");
  }
  return text;
}

std::string head(const MemoryPlan& p) {
  const EngineOptions& e = p.engine;
  return fmt::format("{}: {} parameters, {}; {} micro-batch{} of {} x {} tokens a step\n{}\non {}, {}\n\n", p.model,
                     grouped(p.config.parameters()), name_of(e.compute), e.micro_batches,
                     e.micro_batches == 1 ? "" : "es", e.micro_batch, e.sequence_length, settings_text(p.config, e),
                     p.device, mesh_text(e));
}

/// "pipeline: 1f1b over 4 stages of 8, 8, 8, 6 layers, idle for 15.8 % of a step", and the schedule.
std::string pipeline_lines(const MemoryPlan& p) {
  const PipelineTimeline& t = *p.pipeline;
  const PipelineCosts costs = pipeline_costs(p.config, p.engine.sequence_length);
  const std::vector<int64_t> layers = balance_layers(p.config.layers, t.shape.stages(), costs);
  return fmt::format("pipeline: {} over {} stages of {} layers, idle for {:.1f} % of a step\n{}",
                     word_of<PipelineSchedule>(p.engine.schedule, kPipelineScheduleWords), t.shape.stages(),
                     fmt::join(layers, ", "), 100 * t.idle_share(), pipeline_text(t));
}

std::string table(const MemoryPlan& p) {
  const std::vector<PlanLine> lines = p.lines();
  std::string text = fmt::format("{:<34} {:>7} {:>14}\n", "at the peak", "count", "bytes");
  for (size_t begin = 0; begin < lines.size();) {
    size_t end = begin, sum = 0;
    while (end < lines.size() && lines[end].kind == lines[begin].kind) sum += lines[end++].bytes;
    text += fmt::format("{:<34} {:>7} {:>14}\n", lines[begin].kind, "", bytes_text(sum));
    for (; begin < end; ++begin) {
      const PlanLine& line = lines[begin];
      text += fmt::format("  {:<32} {:>7} {:>14}\n", line.name, line.count, bytes_text(line.bytes));
    }
  }
  return text + fmt::format("{:<34} {:>7} {:>14}\n\n", "all", "", bytes_text(p.needed()));
}

/// The settings that take least of all, formats that change the arithmetic included.
Fit smallest_of_all(const MemoryPlan& p) {
  const FitSearch search = p.search();
  constexpr FitFreedom kAll{.recompute = true, .loss_chunk = true, .micro_batch = true};
  Fit least = search.smallest(p.engine, kAll);
  const std::vector<EngineOptions> stages = higher_stages(p.engine);
  std::vector<EngineOptions> others = cheaper_formats(stages.empty() ? p.engine : stages.back());
  if (!stages.empty()) others.push_back(stages.back());
  for (const EngineOptions& options : others) {
    Fit fit = search.smallest(options, kAll);
    if (fit.plan.peak_bytes < least.plan.peak_bytes) least = std::move(fit);
  }
  return least;
}

/// What is left to do where no setting fits.
std::string nothing_fits(const MemoryPlan& p) {
  const Fit least = smallest_of_all(p);
  const std::string flags = recipe_flags(p.config, p.engine, least.options);
  std::string text = fmt::format(" No setting makes it fit: the smallest plan{} needs {}. Use ",
                                 flags.empty() ? "" : fmt::format(" ({})", flags),
                                 bytes_text(p.needed() - p.plan.peak_bytes + least.plan.peak_bytes));
  const bool alone = p.engine.mesh.ranks() == 1;
  if (alone && p.engine.compute != DType::f16 && !least.options.consume_gradients) {
    text += "memory.consume_gradients true with a train.global_batch of one micro-batch, ";
  }
  return text + "a shorter data.sequence_length, a smaller model, " + (alone ? "or " : "more ranks, or ") +
         (p.limited ? "a larger memory.limit." : "a device with more memory.");
}

}  // namespace

std::string bytes_text(size_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 0x1p30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (value >= 0x1p20) return fmt::format("{:.2f} MiB", value / 0x1p20);
  return bytes >= 1024 ? fmt::format("{:.2f} KiB", value / 1024) : fmt::format("{} B", bytes);
}

std::string plan_report(const MemoryPlan& p) {
  std::string text = head(p) + table(p);
  if (p.engine.mesh.ranks() > 1) text += stages_table(p);
  text += fmt::format("peak: {}, arena {}\n", p.plan.peak_text(), bytes_text(p.plan.peak_bytes));
  text += fmt::format("capacity: {} ({})\n", bytes_text(p.capacity), p.capacity_source);
  text += p.fits() ? fmt::format("fits: {} remain free\n", bytes_text(p.capacity - p.needed()))
                   : fmt::format("does not fit: {} too much\n", bytes_text(p.needed() - p.capacity));
  if (p.plan.step_seconds > 0) {
    text += fmt::format("a step: {:.3g} FLOPs, at least {} at {:.0f} GFLOP/s and {:.0f} GB/s\n", p.plan.step_flops,
                        seconds_text(p.plan.step_seconds), p.rates.flops_per_second * 1e-9,
                        p.rates.bytes_per_second * 1e-9);
  }
  if (p.engine.mesh.ranks() > 1) text += traffic_lines(p);
  if (p.pipeline) text += pipeline_lines(p);
  for (const std::string& estimate : p.estimates) text += fmt::format("estimated: {}\n", estimate);
  return text;
}

namespace {

void add_ranks(const MemoryPlan& p, nlohmann::json& json) {
  const MeshSizes& m = p.engine.mesh;
  json["rank"] = p.plan.rank;
  json["mesh"] = {{"data", m.data},     {"context", m.context}, {"pipeline", m.pipeline},
                  {"tensor", m.tensor}, {"shard", m.shards()},  {"zero", p.engine.zero}};
  for (const StagePlan& stage : p.plan.stages) {
    json["pipeline_ranks"].push_back({{"rank", stage.rank},
                                      {"peak_bytes", stage.peak_bytes},
                                      {"state_bytes", stage.state_bytes},
                                      {"fits", stage.peak_bytes + p.outside_bytes() <= p.capacity}});
  }
  for (size_t g = 0; g < kGroups; ++g) {
    const Traffic& t = p.plan.traffic[g];
    if (t.collectives == 0) continue;
    json["traffic"][std::string(kGroupNames[g])] = {
        {"bytes", t.bytes}, {"collectives", t.collectives}, {"waited_seconds", t.waited}};
  }
}

}  // namespace

nlohmann::json plan_json(const MemoryPlan& p) {
  nlohmann::json predicted = predicted_json(p.config, p.engine, p.plan, p.needed());
  for (const PlanLine& line : p.outside) {
    predicted["items"].push_back(
        {{"name", line.name}, {"kind", line.kind}, {"count", line.count}, {"bytes", line.bytes}});
  }
  nlohmann::json json = {{"model", p.model},
                         {"device", p.device},
                         {"ranks", p.engine.mesh.ranks()},
                         {"parameters", p.config.parameters()},
                         {"precision", name_of(p.engine.compute)},
                         {"predicted", predicted},
                         {"capacity", {{"bytes", p.capacity}, {"source", p.capacity_source}}},
                         {"fits", p.fits()},
                         {"estimates", p.estimates}};
  if (p.engine.mesh.ranks() > 1) add_ranks(p, json);
  if (p.pipeline) {
    json["pipeline"] = {{"schedule", word_of<PipelineSchedule>(p.engine.schedule, kPipelineScheduleWords)},
                        {"stages", p.pipeline->shape.stages()},
                        {"idle_share", p.pipeline->idle_share()}};
  }
  return json;
}

std::string misfit_text(const MemoryPlan& p, const std::string& command) {
  const bool alone = p.engine.mesh.ranks() == 1;
  std::string text = fmt::format("{} needs {} ({} bytes){} and ", p.model, bytes_text(p.needed()), p.needed(),
                                 alone ? "" : " on " + rank_text(p, p.plan.rank));
  text += p.limited ? "memory.limit is" : (p.gpu ? p.device : "this machine") + " has";
  text += fmt::format(" {} ({} bytes){}.", bytes_text(p.capacity), p.capacity,
                      p.limited ? ""
                      : alone   ? " for it"
                                : " for each rank");
  text += misfit_stages(p);
  const std::string fitting = fitting_settings(p.search(), p.config, {p.engine, p.plan}, command);
  if (!fitting.empty()) return text + " These settings fit (bytes of the arena):" + fitting;
  return text + nothing_fits(p);
}

}  // namespace yoke
