#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace yoke::log {

void setup(bool verbose) {
  auto logger = spdlog::get("yoke");
  if (!logger) logger = spdlog::stderr_color_mt("yoke");
  logger->set_pattern("%H:%M:%S %^%l%$ %v");
  logger->set_level(verbose ? spdlog::level::debug : spdlog::level::info);
  spdlog::set_default_logger(logger);
}

}  // namespace yoke::log
