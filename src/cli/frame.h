// What every command line of yoke has in common: help, errors, exit codes.
#pragma once

namespace CLI {
class App;
}

namespace yoke {

/// Parses, runs the chosen command's callback, prints whatever is thrown as one message to standard error, and returns
/// the exit code. A mistyped command or option gets the nearest legal one.
int run_app(CLI::App& app, int argc, const char* const* argv);

}  // namespace yoke
