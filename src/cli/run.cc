#include "cli/run.h"

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/frame.h"
#include "launch/start.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"(Examples:
  yoke train recipe.yaml
  yoke plan recipe.yaml --gpu "H100 SXM5"
  yoke generate runs/recipe/model --prompt "Once upon a time"
  yoke eval runs/recipe/model --data held-out.txt
  yoke COMMAND --help)";

}  // namespace

int run(int argc, char** argv) {
  CLI::App app("yoke trains LLaMA-family language models on the machine you have.", "yoke");
  app.set_version_flag("--version", "yoke " YOKE_VERSION);
  app.require_subcommand(1);
  app.footer(kExamples);
  int code = 0;
  add_train_command(app, [&code](const TrainOptions& options) {
    const std::optional<int> started = start_ranks(options);
    code = started ? *started : train(options);
  });
  add_plan_command(app, [](const PlanOptions& options) { plan(options); });
  add_generate_command(app, [&code](const GenerateOptions& options) { code = generate(options); });
  add_eval_command(app, [&code](const EvalOptions& options) { code = evaluate(options); });
  add_export_command(app, [&code](const ExportOptions& options) { code = export_checkpoint(options); });
  add_tokenizer_command(app);
  add_data_command(app);
  add_launch_command(app);
  add_completion_command(app);
  add_unbuilt_commands(app);
  const int failure = run_app(app, argc, argv);
  return failure != 0 ? failure : code;
}

}  // namespace yoke
