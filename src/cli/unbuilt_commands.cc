#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/commands.h"

namespace yoke {

namespace {

struct Unbuilt {
  const char* name;
  const char* description;
};

constexpr Unbuilt kUnbuilt[] = {
    {"merge", "Merge an adapter into its model"},
    {"doctor", "What on this machine will break or slow a run"},
    {"bench", "This machine's ceilings"},
    {"dashboard", "A live web page of the runs in a folder"},
};

}  // namespace

void add_unbuilt_commands(CLI::App& app) {
  for (const auto& [name, description] : kUnbuilt) {
    CLI::App* command = app.add_subcommand(name, fmt::format("{} (not built yet)", description));
    command->allow_extras();
    command->callback([name = name] { fail_usage("yoke {} is not built yet in this version.", name); });
  }
}

}  // namespace yoke
