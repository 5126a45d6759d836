// Log lines for people. Metrics go elsewhere (monitor/).
#pragma once

#include <spdlog/spdlog.h>

namespace yoke::log {

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

/// Lines go to standard error, so that standard output stays the command's result.
void setup(bool verbose);

}  // namespace yoke::log
