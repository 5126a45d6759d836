#include "checkpoint/together.h"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/file.h"

namespace yoke {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "an unknown host";
  return name;
}

/// How `work` went, as text.
std::string outcome(const std::function<std::string()>& work) {
  ExitCode code = ExitCode::done;
  std::string text;
  try {
    text = work();
  } catch (const UserError& error) {
    code = error.code();
    text = error.what();
  } catch (const std::exception& error) {
    code = ExitCode::bug;
    text = error.what();
  }
  // Texts that were no UTF-8 (paths) stay readable.
  return json{{"code", static_cast<int>(code)}, {"host", host_name()}, {"text", text}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::vector<std::string> together(const Parallel& parallel, const std::function<std::string()>& work) {
  if (parallel.mesh().sizes().ranks() == 1) return {work()};
  const std::vector<std::string> outcomes = parallel.host().all_gather(outcome(work));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const json one = json::parse(outcomes[rank]);
    texts.push_back(one.at("text").get<std::string>());
    const auto code = static_cast<ExitCode>(one.at("code").get<int>());
    if (code != ExitCode::done) {
      throw UserError(code,
                      fmt::format("rank {} on host {}: {}", rank, one.at("host").get<std::string>(), texts.back()));
    }
  }
  return texts;
}

std::string on_first(const Parallel& parallel, const std::function<std::string()>& work) {
  return together(parallel, [&] { return parallel.first() ? work() : std::string(); }).front();
}

void require_shared_folder(const Parallel& parallel, const fs::path& folder) {
  if (parallel.mesh().sizes().ranks() == 1) return;
  const fs::path file = folder / ".shared";
  const std::string token = on_first(parallel, [&] {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    const std::string text = fmt::format("{} {} {}", host_name(), ::getpid(), now);
    write_file(file, text);
    return text;
  });
  const auto seen = [&] {
    try {
      return read_file(file, 4096) == token;
    } catch (const UserError&) {
      return false;
    }
  };
  const auto look = [&] {
    // Network file systems may show a new file late; opening its folder makes them ask again.
    constexpr int kTries = 50;
    for (int i = 0; i < kTries; ++i) {
      if (seen()) return std::string();
      std::error_code ignored;
      fs::directory_iterator(folder, ignored);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    fail_usage(
        "{} is not the folder that rank 0 (host {}) writes to. All ranks write to one folder: set `output` to a "
        "folder on a file system that every host mounts.",
        folder.string(), token.substr(0, token.find(' ')));
  };
  try {
    together(parallel, look);
  } catch (...) {
    std::error_code ignored;
    if (parallel.first()) fs::remove(file, ignored);
    throw;
  }
  on_first(parallel, [&] {
    fs::remove(file);
    return std::string();
  });
}

}  // namespace yoke
