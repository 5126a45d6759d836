// Files: reading, mapping, and writing so that a crash or a full disk never leaves a half-written file under its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace yoke {

/// The whole file. UserError (bad_file) when it can't be read or is larger than `limit` bytes.
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 32);

/// A read-only memory map of a file. Moving keeps the pages where they are.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);  ///< UserError (bad_file) when it can't be mapped
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  /// Takes the pages that lie wholly in [begin, begin + bytes) out of this process; they come back when touched.
  void release(size_t begin, size_t bytes) const;

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

/// A file that is written under a temporary name beside `path` and takes its name in commit(). Every failure, a full
/// disk too, is a UserError (bad_file) that names the path; the temporary file is removed unless committed.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter();

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t position() const { return position_; }
  /// Flush, fsync, rename.
  void commit();

 private:
  void flush();

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  uint64_t position_ = 0;
  std::string buffer_;
};

/// A file of known size that is filled region by region, perhaps by several processes. Failures are UserErrors
/// (bad_file) that name the path.
class RegionFile {
 public:
  /// Makes a file of `bytes` bytes and takes its room on the disk where the file system can do that.
  static void create(const std::filesystem::path& path, uint64_t bytes);
  /// Opens a file that was created.
  explicit RegionFile(const std::filesystem::path& path);
  RegionFile(RegionFile&& other) noexcept;
  RegionFile& operator=(RegionFile&&) = delete;
  ~RegionFile();

  void write(uint64_t position, const void* data, size_t bytes) const;
  void read(uint64_t position, void* data, size_t bytes) const;
  void sync() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// write + commit in one call.
void write_file(const std::filesystem::path& path, std::string_view content);

/// fsync of a folder, so that a rename in it survives a power cut.
void sync_folder(const std::filesystem::path& folder);

/// XXH3, 128 bits, as 32 hexadecimal digits.
std::string hash_hex(const void* data, size_t bytes);

/// XXH3-128 over data that comes in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  ~Hasher();
  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string hex() const;

 private:
  void* state_;
};

}  // namespace yoke
