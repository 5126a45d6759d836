#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace yoke {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

std::string reason() { return std::generic_category().message(errno); }

/// Opens for reading and returns the descriptor and the size; only regular files are legal.
std::pair<int, size_t> open_regular(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_file("{}: can't be opened: {}.", path.string(), reason());
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    fail_file("{}: is not a regular file.", path.string());
  }
  return {fd, static_cast<size_t>(info.st_size)};
}

}  // namespace

std::string read_file(const std::filesystem::path& path, size_t limit) {
  const auto [fd, size] = open_regular(path);
  if (size > limit) {
    ::close(fd);
    fail_file("{}: is {} bytes long; at most {} are legal for a file of this kind.", path.string(), size, limit);
  }
  std::string content(size, '\0');
  size_t got = 0;
  while (got < size) {
    const ssize_t n = ::read(fd, content.data() + got, size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const std::string why = n < 0 ? reason() : "it ended early";
      ::close(fd);
      fail_file("{}: can't be read: {}.", path.string(), why);
    }
    got += static_cast<size_t>(n);
  }
  ::close(fd);
  return content;
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto [fd, size] = open_regular(path);
  size_ = size;
  if (size == 0) {
    ::close(fd);
    return;
  }
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const std::string why = mapped == MAP_FAILED ? reason() : "";
  ::close(fd);
  if (mapped == MAP_FAILED) fail_file("{}: can't be mapped: {}.", path.string(), why);
  data_ = static_cast<uint8_t*>(mapped);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedFile::release(size_t begin, size_t bytes) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = (begin + page - 1) / page * page;
  const size_t end = std::min(begin + bytes, size_) / page * page;
  if (first < end) ::madvise(data_ + first, end - first, MADV_DONTNEED);
}

FileWriter::FileWriter(const std::filesystem::path& path)
    : path_(path), temporary_(path.string() + ".tmp." + std::to_string(::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_file("{}: can't be written: {}.", path_.string(), reason());
  buffer_.reserve(kBufferBytes);
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void FileWriter::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  position_ += bytes;
  while (bytes > 0) {
    const size_t take = std::min(bytes, kBufferBytes - buffer_.size());
    buffer_.append(from, take);
    from += take;
    bytes -= take;
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void FileWriter::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file("{}: can't be written: {}.", path_.string(), reason());
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

void FileWriter::commit() {
  flush();
  if (::fsync(fd_) != 0) fail_file("{}: can't be written: {}.", path_.string(), reason());
  if (::close(std::exchange(fd_, -1)) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const std::string why = reason();
    ::unlink(temporary_.c_str());
    fail_file("{}: can't be written: {}.", path_.string(), why);
  }
}

void RegionFile::create(const std::filesystem::path& path, uint64_t bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) fail_file("{}: can't be created: {}.", path.string(), reason());
  const auto size = static_cast<off_t>(bytes);
  bool made = bytes == 0 || ::fallocate(fd, 0, 0, size) == 0;
  if (!made && (errno == EOPNOTSUPP || errno == ENOSYS)) made = ::ftruncate(fd, size) == 0;
  const std::string why = made ? "" : reason();
  ::close(fd);
  if (!made) fail_file("{}: can't be given {} bytes: {}.", path.string(), bytes, why);
}

RegionFile::RegionFile(const std::filesystem::path& path) : path_(path), fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  if (fd_ < 0) fail_file("{}: can't be opened for writing: {}.", path_.string(), reason());
}

RegionFile::RegionFile(RegionFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

RegionFile::~RegionFile() {
  if (fd_ >= 0) ::close(fd_);
}

void RegionFile::write(uint64_t position, const void* data, size_t bytes) const {
  const char* from = static_cast<const char*>(data);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(fd_, from + done, bytes - done, static_cast<off_t>(position + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file("{}: can't be written: {}.", path_.string(), reason());
    done += static_cast<size_t>(n);
  }
}

void RegionFile::read(uint64_t position, void* data, size_t bytes) const {
  char* to = static_cast<char*>(data);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, to + done, bytes - done, static_cast<off_t>(position + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_file("{}: can't be read: {}.", path_.string(), n < 0 ? reason() : "it ended early");
    done += static_cast<size_t>(n);
  }
}

void RegionFile::sync() const {
  if (::fsync(fd_) != 0) fail_file("{}: can't be written: {}.", path_.string(), reason());
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  FileWriter writer(path);
  writer.write(content);
  writer.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_file("{}: can't be opened: {}.", folder.string(), reason());
  ::fsync(fd);
  ::close(fd);
}

namespace {

std::string hex_of(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

std::string hash_hex(const void* data, size_t bytes) { return hex_of(XXH3_128bits(data, bytes)); }

Hasher::Hasher() : state_(XXH3_createState()) { XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_)); }
Hasher::~Hasher() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void Hasher::update(const void* data, size_t bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), data, bytes);
}
std::string Hasher::hex() const { return hex_of(XXH3_128bits_digest(static_cast<XXH3_state_t*>(state_))); }

}  // namespace yoke
