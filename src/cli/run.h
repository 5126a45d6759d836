// The program `yoke`.
#pragma once

namespace yoke {

/// Parses the command line, runs the command, prints errors. Returns the exit code (docs/errors.md).
int run(int argc, char** argv);

}  // namespace yoke
