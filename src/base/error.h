// The error contract: a user's mistake is a UserError with an exit code, a bug of ours is an assertion.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

/// Process exit codes; documented in docs/errors.md.
enum class ExitCode : int {
  done = 0,
  bug = 1,           ///< a bug or an unexpected failure
  usage = 2,         ///< recipe or arguments wrong
  does_not_fit = 3,  ///< the run does not fit the memory
  bad_file = 4,      ///< a data or model file can't be used
  non_finite = 5,    ///< training became non-finite
  interrupted = 6,   ///< interrupted, state saved
  lost_rank = 7,     ///< a rank or device was lost
};

/// A mistake of the user's or a fault of the environment. The message names the thing, what was found, what is
/// legal and what to do.
class UserError : public std::runtime_error {
 public:
  UserError(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

template <class... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(ExitCode::usage, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail_file(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(ExitCode::bad_file, fmt::format(format, std::forward<Args>(args)...));
}

/// Ends the process: an invariant of ours is broken.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line, const std::string& message);

/// The legal name nearest to `wrong` by edit distance, or "" when none is near enough to be what was meant.
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& legal);

/// " Did you mean 'x'?" or "".
std::string did_you_mean(std::string_view wrong, const std::vector<std::string>& legal);

}  // namespace yoke

/// Always on: checks our own invariants, never a user's input.
#define YOKE_ASSERT(condition, ...)                                                            \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::yoke::assertion_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
