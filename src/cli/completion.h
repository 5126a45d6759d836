// Shell completion, written from the command line's own tree.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace yoke {

enum class Shell { bash, zsh, fish };

/// A script for `shell` that completes the commands and long options of `root`, and files elsewhere.
std::string completion_script(const CLI::App& root, Shell shell);

}  // namespace yoke
