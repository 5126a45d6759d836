#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/completion.h"

namespace yoke {

namespace {

constexpr const char* kExamples = R"sh(Examples:
  eval "$(yoke completion bash)"       # in ~/.bashrc
  source <(yoke completion zsh)        # in ~/.zshrc, after compinit
  yoke completion fish | source        # in ~/.config/fish/config.fish)sh";

}  // namespace

void add_completion_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for a shell");
  command->require_subcommand(1);
  command->footer(kExamples);
  const std::pair<const char*, Shell> shells[] = {{"bash", Shell::bash}, {"zsh", Shell::zsh}, {"fish", Shell::fish}};
  for (const auto& [name, shell] : shells) {
    command->add_subcommand(name, fmt::format("A script for {}", name))->callback([&app, shell = shell] {
      fmt::print("{}", completion_script(app, shell));
    });
  }
}

}  // namespace yoke
