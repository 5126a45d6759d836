#include "cli/frame.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <new>
#include <system_error>

#include "base/error.h"

namespace yoke {

namespace {

int code_of(ExitCode code) { return static_cast<int>(code); }

int report(ExitCode code, const std::string& message) {
  fmt::print(stderr, "yoke: {}\n", message);
  return code_of(code);
}

/// The innermost command that was typed.
const CLI::App& typed_command(const CLI::App& app) {
  const auto typed = app.get_subcommands();
  return typed.empty() ? app : typed_command(*typed.back());
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

/// One sentence on a command line that doesn't parse.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = typed_command(app);
  const std::vector<std::string> commands = command_names(command);
  for (const std::string& word : app.remaining(true)) {
    if (word.size() > 1 && word[0] == '-') {
      const std::string name = word.substr(0, word.find('='));
      return fmt::format("{} has no option {}.{}", full_name(command), name, did_you_mean(name, option_names(command)));
    }
    if (!commands.empty()) {
      return fmt::format("{} has no command '{}'; legal are {}.{}", full_name(command), word, fmt::join(commands, ", "),
                         did_you_mean(word, commands));
    }
    return fmt::format("{}: unexpected argument '{}'.", full_name(command), word);
  }
  if (!commands.empty() && error.get_name() == "RequiredError") {
    return fmt::format("{} needs a command: {}.", full_name(command), fmt::join(commands, ", "));
  }
  return fmt::format("{}: {}.", full_name(command), error.what());
}

int report_lost_output(int reason) {
  return report(ExitCode::bad_file,
                fmt::format("standard output can't be written: {}.", std::generic_category().message(reason)));
}

/// A command whose output was lost has failed.
int flush_output() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::cout.good()) return 0;
  return report_lost_output(errno);
}

int report_bug(const std::exception& error) {
  return report(ExitCode::bug,
                fmt::format("unexpected failure: {}\nThis may be a bug in yoke; please report it.", error.what()));
}

int run_unprotected(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    return report(ExitCode::usage,
                  fmt::format("{} See {} --help.", explain(app, error), full_name(typed_command(app))));
  }
  return flush_output();
}

}  // namespace

int run_app(CLI::App& app, int argc, const char* const* argv) {
  try {
    return run_unprotected(app, argc, argv);
  } catch (const UserError& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::does_not_fit,
                  "the system refused more memory; use a smaller batch, sequence or model, or end other programs.");
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) return report_lost_output(error.code().value());  // longer than its buffer
    return report_bug(error);
  } catch (const std::exception& error) {
    return report_bug(error);
  }
}

}  // namespace yoke
