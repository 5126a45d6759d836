// Folders that take their name only when they are complete, and room for them on the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace yoke {

/// UserError (bad_file) when the file system of `folder` has less than `bytes` free; names `what`, needed and found.
void require_disk_space(const std::filesystem::path& folder, uint64_t bytes, const std::string& what);

/// A folder that is filled under a temporary name beside `target` and takes its name in publish(). Unless published
/// it is removed with all that is in it.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& target);
  /// The name under which it is filled.
  static std::filesystem::path path_of(const std::filesystem::path& target);
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  const std::filesystem::path& path() const { return path_; }
  /// Fsync of the folder, rename to the target, fsync of the folder above. What had the target's name is removed
  /// after the new folder has it.
  void publish();

 private:
  std::filesystem::path target_, path_;
  bool published_ = false;
};

/// Removes what interrupted TemporaryFolders left in `parent`; a target that was moved aside and not yet replaced gets
/// its name back. No other process may be writing there.
void clean_temporary_folders(const std::filesystem::path& parent);

/// XXH3 of a file, read in pieces.
std::string hash_file(const std::filesystem::path& path);

}  // namespace yoke
