#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/overrides.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"(Examples:
  yoke train recipe.yaml
  yoke train recipe.yaml --train.steps 100 --output runs/trial
  yoke train recipe.yaml --data.train a.txt,b.txt --train.precision fp32
  yoke train recipe.yaml --resume auto
  yoke train recipe.yaml --dry-run
  yoke train recipe.yaml --parallel.data 4
  yoke train recipe.yaml --hosts node1:8,node2:8

docs/recipe.md explains every key.)";

}  // namespace

void add_train_command(CLI::App& app, std::function<void(const TrainOptions&)> action) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a recipe says");
  const auto options = std::make_shared<TrainOptions>();
  command->add_option("RECIPE", options->recipe, "The recipe, a YAML file")->required()->type_name("FILE");
  command
      ->add_option("--resume", options->resume,
                   "auto: continue from the newest whole checkpoint of the output folder, if there is one; none: begin "
                   "anew; or the path of a checkpoint")
      ->type_name("auto|none|PATH")
      ->capture_default_str();
  command->add_flag("--dry-run", options->dry_run, "Stop after plan and rehearsal");
  command->add_flag("--verbose", options->verbose, "More log lines");
  command->add_flag("--profile", options->profile, "Measure every operation and print the table at the end");
  command
      ->add_option("--hosts", options->hosts,
                   "Hosts to start ranks on, each with how many: through mpirun, which reaches them by ssh")
      ->type_name("HOST:N,...");
  command->add_option("--hostfile", options->hostfile, "The same in a file, a line a host: HOST slots=N")
      ->type_name("FILE");
  // What the process that starts ranks tells them.
  command->add_option("--ranks", options->ranks)->group("");
  command->add_option("--terminal", options->terminal)->group("");
  add_recipe_overrides(*command, options, options->overrides);
  command->footer(kExamples);
  command->callback([options, action] {
    log::setup(options->verbose);
    // A reader of the progress lines that goes away, such as `| head`, must not end the run.
    std::signal(SIGPIPE, SIG_IGN);
    // A file that reaches the size limit is a failed write, as on a full disk.
    std::signal(SIGXFSZ, SIG_IGN);
    action(*options);
  });
}

}  // namespace yoke
