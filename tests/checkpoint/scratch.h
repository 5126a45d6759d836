// A folder for one test, and helpers to compare messages.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"

namespace yoke::test {

class Scratch {
 public:
  enum class Where {
    disk,
    memory,  ///< where fsync costs nothing, for tests that write thousands of files
  };

  explicit Scratch(Where where = Where::disk) {
    const bool memory = where == Where::memory && ::access("/dev/shm", W_OK) == 0;
    const auto parent = memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "yoke-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// The message of the UserError that `action` throws; a failure when it throws none or with another exit code.
inline std::string error_of(const std::function<void()>& action, ExitCode code = ExitCode::bad_file) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace yoke::test

#define EXPECT_CONTAINS(text, part) EXPECT_TRUE(::yoke::test::contains(text, part)) << text
