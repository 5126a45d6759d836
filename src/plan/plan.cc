// yoke plan: the memory of a run, before there is one.
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/hf_config.h"
#include "plan/commands.h"
#include "plan/memory_picture.h"
#include "plan/report.h"
#include "plan/schedule_picture.h"
#include "train/command_text.h"
#include "train/mesh_choice.h"
#include "train/recipe_words.h"

namespace yoke {

namespace {

/// A model by itself is a recipe that names it and leaves all else at its default; no sequence is longer than the model
/// allows.
LoadedRecipe recipe_of_model(const PlanOptions& options) {
  const int64_t longest = read_hf_config(options.target).model.max_positions;
  std::vector<RecipeOverride> overrides{{"model.path", options.target}, {"data.train", "none"}, {"train.steps", "1"}};
  if (longest < DataRecipe{}.sequence_length) overrides.push_back({"data.sequence_length", std::to_string(longest)});
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  return parse_recipe("", options.target, overrides);
}

bool is_model(const std::filesystem::path& target) {
  std::error_code ignored;
  return std::filesystem::is_directory(target, ignored) || target.extension() == ".json";
}

/// What plans this again.
std::string command_line(const PlanOptions& options, const LoadedRecipe& loaded, DType compute) {
  std::string words = "yoke plan " + shell_word(options.target);
  if (options.gpu) words += " --gpu " + shell_word(*options.gpu);
  if (options.gpus) words += fmt::format(" --gpus {}", *options.gpus);
  if (options.nodes) words += fmt::format(" --nodes {}", *options.nodes);
  return command_with(words, options.overrides, loaded, compute);
}

/// `--gpus` x `--nodes` ranks, or, without either, as many as the recipe asks for.
PlannedRanks ranks_of(const PlanOptions& options, const LoadedRecipe& loaded) {
  constexpr int64_t kMost = 1 << 10;
  for (const auto& [option, count] : {std::pair{"--gpus", options.gpus}, {"--nodes", options.nodes}}) {
    if (count && (*count < 1 || *count > kMost)) {
      fail_usage("{} is {}; it must be at least 1 and at most {}.", option, *count, kMost);
    }
  }
  std::optional<int> ranks;
  if (options.gpus || options.nodes) ranks = static_cast<int>(options.gpus.value_or(1) * options.nodes.value_or(1));
  return {.mesh = mesh_sizes(loaded, ranks), .node_ranks = ranks ? static_cast<int>(options.gpus.value_or(1)) : 0};
}

void draw_schedule(const MemoryPlan& p, const std::string& file) {
  if (!p.pipeline) fail_usage("--schedule-svg draws pipelines; parallel.pipeline is 1. Leave the option out.");
  const std::string_view schedule = word_of<PipelineSchedule>(p.engine.schedule, kPipelineScheduleWords);
  write_file(file, schedule_picture(*p.pipeline, fmt::format("One step of {}, schedule {}", p.model, schedule),
                                    p.rates.flops_per_second > 0 ? "s" : "FLOPs"));
}

}  // namespace

void plan(const PlanOptions& options) {
  const auto gpu = options.gpu ? std::optional(find_gpu(gpu_catalogue(), *options.gpu)) : std::nullopt;
  const LoadedRecipe loaded =
      is_model(options.target) ? recipe_of_model(options) : load_recipe(options.target, options.overrides);
  const MemoryPlan plan = plan_memory(loaded.recipe, gpu, ranks_of(options, loaded));
  if (options.svg) write_file(*options.svg, memory_picture(plan));
  if (options.schedule_svg) draw_schedule(plan, *options.schedule_svg);
  if (options.json) {
    fmt::print("{}\n", plan_json(plan).dump(2));
  } else {
    fmt::print("{}", plan_report(plan));
  }
  if (!plan.fits())
    throw UserError(ExitCode::does_not_fit, misfit_text(plan, command_line(options, loaded, plan.engine.compute)));
}

}  // namespace yoke
