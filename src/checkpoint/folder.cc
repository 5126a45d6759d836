#include "checkpoint/folder.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace yoke {

namespace fs = std::filesystem;

namespace {

constexpr const char* kUnfinished = ".unfinished";  // a folder that is being filled
constexpr const char* kReplaced = ".replaced";      // a target that makes way for a new one

fs::path beside(const fs::path& target, const char* suffix) {
  return target.parent_path() / fmt::format(".{}{}", target.filename().string(), suffix);
}

fs::path absolute_target(const fs::path& target) {
  const fs::path normal = fs::absolute(target).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

std::string reason() { return std::generic_category().message(errno); }

}  // namespace

void require_disk_space(const fs::path& folder, uint64_t bytes, const std::string& what) {
  struct statvfs info {};
  // A file system that doesn't tell is no reason to refuse; the writes themselves are checked too.
  if (::statvfs(folder.c_str(), &info) != 0 || info.f_blocks == 0) return;
  const uint64_t available = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (available < bytes) {
    fail_file("{}: {} needs {:.1f} MiB, but the disk has {:.1f} MiB free. Free some space or choose another folder.",
              folder.string(), what, static_cast<double>(bytes) / 1048576, static_cast<double>(available) / 1048576);
  }
}

fs::path TemporaryFolder::path_of(const fs::path& target) { return beside(absolute_target(target), kUnfinished); }

TemporaryFolder::TemporaryFolder(const fs::path& target) : target_(absolute_target(target)), path_(path_of(target_)) {
  std::error_code error;
  fs::remove_all(path_, error);
  if (!error) fs::create_directories(target_.parent_path(), error);
  if (!error) fs::create_directory(path_, error);
  if (error) fail_file("{}: can't be created: {}.", path_.string(), error.message());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!published_) fs::remove_all(path_, ignored);
}

void TemporaryFolder::publish() {
  sync_folder(path_);
  const fs::path old = beside(target_, kReplaced);
  std::error_code ignored;
  fs::remove_all(old, ignored);
  const bool replaces = ::rename(target_.c_str(), old.c_str()) == 0;
  if (!replaces && errno != ENOENT) fail_file("{}: can't be replaced: {}.", target_.string(), reason());
  if (::rename(path_.c_str(), target_.c_str()) != 0) {
    const std::string why = reason();
    if (replaces) ::rename(old.c_str(), target_.c_str());
    fail_file("{}: can't take its name: {}.", target_.string(), why);
  }
  published_ = true;
  sync_folder(target_.parent_path());
  if (replaces) fs::remove_all(old, ignored);
}

void clean_temporary_folders(const fs::path& parent) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') && (name.ends_with(kUnfinished) || name.ends_with(kReplaced))) {
      leftovers.push_back(entry.path());
    }
  }
  for (const fs::path& path : leftovers) {
    const std::string name = path.filename().string();
    if (name.ends_with(kReplaced)) {
      const fs::path target = parent / name.substr(1, name.size() - 1 - std::string(kReplaced).size());
      if (!fs::exists(target)) {
        fs::rename(path, target, error);
        if (!error) continue;
      }
    }
    fs::remove_all(path, error);
    log::info("Removed {}, left by an interrupted save.", path.string());
  }
}

std::string hash_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_file("{}: can't be opened: {}.", path.string(), reason());
  std::vector<char> buffer(size_t{1} << 20);
  Hasher hasher;
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())), file.gcount() > 0) {
    hasher.update(buffer.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) fail_file("{}: can't be read: {}.", path.string(), reason());
  return hasher.hex();
}

}  // namespace yoke
