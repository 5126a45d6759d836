#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/overrides.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"(Examples:
  yoke plan recipe.yaml
  yoke plan recipe.yaml --gpu "RTX 4090" --svg memory.svg
  yoke plan Llama-3.1-8B/ --gpu h200 --data.sequence_length 8192 --memory.recompute block
  yoke plan Llama-3.1-8B/ --gpu h100sxm5 --gpus 8 --parallel.zero 3 --train.global_batch 64
  yoke plan config.json --train.micro_batch 4 --train.precision bf16 --json

Exit code 3: the plan does not fit. docs/plan.md explains the figures.)";

}  // namespace

void add_plan_command(CLI::App& app, std::function<void(const PlanOptions&)> action) {
  CLI::App* command = app.add_subcommand("plan", "The memory of a run, item by item, and whether it fits");
  const auto options = std::make_shared<PlanOptions>();
  command->add_option("TARGET", options->target, "A recipe; or a model: its folder or config.json, weights not needed")
      ->required()
      ->type_name("RECIPE|MODEL");
  command->add_option("--gpu", options->gpu, "Plan for this GPU, such as \"H100 SXM5\"; default: for this machine")
      ->type_name("NAME");
  command->add_option("--gpus", options->gpus, "GPUs, or ranks, of a node; default: as many as `parallel` asks for");
  command->add_option("--nodes", options->nodes, "Nodes of as many GPUs");
  command->add_flag("--json", options->json, "One JSON object instead of a table");
  command->add_option("--svg", options->svg, "Write a picture of memory over one step")->type_name("FILE");
  command->add_option("--schedule-svg", options->schedule_svg, "Write a picture of a pipeline's step")
      ->type_name("FILE");
  add_recipe_overrides(*command, options, options->overrides);
  command->footer(kExamples);
  command->callback([options, action] {
    log::setup(false);
    action(*options);
  });
}

}  // namespace yoke
