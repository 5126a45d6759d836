// One function a command: each adds its subcommand, with its options and help, to the program's command line. The work
// is done by `action`, which gets what was typed.
#pragma once

#include <functional>

#include "plan/commands.h"
#include "train/commands.h"

namespace CLI {
class App;
}

namespace yoke {

void add_train_command(CLI::App& app, std::function<void(const TrainOptions&)> action);
void add_plan_command(CLI::App& app, std::function<void(const PlanOptions&)> action);
void add_generate_command(CLI::App& app, std::function<void(const GenerateOptions&)> action);
void add_eval_command(CLI::App& app, std::function<void(const EvalOptions&)> action);
void add_export_command(CLI::App& app, std::function<void(const ExportOptions&)> action);
void add_tokenizer_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_launch_command(CLI::App& app);
/// Prints a completion script of whatever commands `app` has when it runs.
void add_completion_command(CLI::App& app);
/// Commands that are part of yoke's interface and end with an error that says they are not built yet.
void add_unbuilt_commands(CLI::App& app);

}  // namespace yoke
