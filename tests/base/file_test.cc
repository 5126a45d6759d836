#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/error.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;

/// A folder of its own for each test.
class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string name = (fs::temp_directory_path() / "yoke_file_test.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FileTest() override { fs::remove_all(folder_); }

  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

/// The message of the UserError (bad_file) that `action` ends with.
template <class Action>
std::string failure(Action action) {
  try {
    action();
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::bad_file);
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 131 % 251);
  return text;
}

TEST_F(FileTest, WritesWhatItIsGivenInPieces) {
  const std::string text = pattern(3 * (size_t{1} << 20) + 12345);
  FileWriter writer(folder_ / "a");
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min(text.size() - at, at % 77777 + 1);
    writer.write(text.data() + at, n);
    at += n;
    ASSERT_EQ(writer.position(), at);
  }
  EXPECT_FALSE(fs::exists(folder_ / "a"));  // not before commit
  writer.commit();
  EXPECT_EQ(read_file(folder_ / "a"), text);
  const MappedFile mapped(folder_ / "a");
  EXPECT_EQ(mapped.text(), text);
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileTest, UncommittedLeavesTheOldFileAndNothingElse) {
  write_file(folder_ / "a", "old");
  {
    FileWriter writer(folder_ / "a");
    writer.write("new");
  }
  EXPECT_EQ(read_file(folder_ / "a"), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileTest, MissingFolderIsNamed) {
  const fs::path path = folder_ / "none" / "a.bin";
  EXPECT_NE(failure([&] { FileWriter writer(path); }).find(path.string()), std::string::npos);
}

/// Files may not grow beyond `bytes` while this lives: the same error path as a full disk.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(FileTest, FullDiskIsReportedAndTheOldFileKept) {
  write_file(folder_ / "a", "old");
  for (const size_t bytes : {size_t{5000}, size_t{4} << 20}) {  // found when committing, and while writing
    const std::string text = pattern(bytes);
    const SizeLimit limit(bytes - 1000);
    const std::string message = failure([&] { write_file(folder_ / "a", text); });
    EXPECT_NE(message.find((folder_ / "a").string()), std::string::npos) << message;
  }
  EXPECT_EQ(read_file(folder_ / "a"), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileTest, ReadsEmptyAndRefusesTheRest) {
  write_file(folder_ / "empty", "");
  EXPECT_EQ(read_file(folder_ / "empty"), "");
  const MappedFile empty(folder_ / "empty");
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_EQ(empty.text(), "");
  for (const fs::path& path : {folder_ / "missing", folder_, fs::path("/dev/zero")}) {
    EXPECT_NE(failure([&] { MappedFile mapped(path); }).find(path.string()), std::string::npos);
    EXPECT_NE(failure([&] { read_file(path); }).find(path.string()), std::string::npos);
  }
  write_file(folder_ / "long", pattern(1001));
  EXPECT_NE(failure([&] { read_file(folder_ / "long", 1000); }).find("1001"), std::string::npos);
  EXPECT_EQ(read_file(folder_ / "long", 1001).size(), 1001u);
}

TEST_F(FileTest, MapsMove) {
  write_file(folder_ / "a", "first");
  write_file(folder_ / "b", "second");
  MappedFile a(folder_ / "a"), b(folder_ / "b");
  const uint8_t* at = b.data();
  a = std::move(b);
  EXPECT_EQ(a.data(), at);
  EXPECT_EQ(a.text(), "second");
  const MappedFile c(std::move(a));
  EXPECT_EQ(c.text(), "second");
}

TEST_F(FileTest, SyncsFoldersOnly) {
  sync_folder(folder_);
  EXPECT_NE(failure([&] { sync_folder(folder_ / "none"); }).find("none"), std::string::npos);
}

// XXH3-128 of nothing with seed 0, as the xxHash project's own checks state it.
TEST(Hash, KnownAnswer) { EXPECT_EQ(hash_hex(nullptr, 0), "99aa06d3014798d86001c324468d497f"); }

TEST(Hash, PiecesEqualTheWhole) {
  const std::string text = pattern(100003);
  for (const size_t piece : {size_t{1}, size_t{17}, size_t{4096}, text.size()}) {
    Hasher hasher;
    for (size_t at = 0; at < text.size(); at += piece) hasher.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(hasher.hex(), hash_hex(text.data(), text.size()));
  }
  std::string changed = text;
  changed[50000] ^= 1;
  EXPECT_NE(hash_hex(changed.data(), changed.size()), hash_hex(text.data(), text.size()));
}

}  // namespace
}  // namespace yoke
