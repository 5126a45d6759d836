#include "comm/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <type_traits>

#include "base/error.h"

namespace yoke {

namespace {

constexpr std::array<char, 8> kMagic{'y', 'o', 'k', 'e', 'f', 'l', 'y', '1'};

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

template <size_t N>
void put_text(char (&to)[N], std::string_view text) {
  const size_t n = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), n);
  std::memset(to + n, 0, N - n);
}

struct Slot {
  uint64_t number;  // of the entry that lies here, written last; 0: being written
  uint64_t sequence;
  int64_t layer, bytes;
  double asked, entered, done;
  int32_t kind, peer;
  char group[16];
  char what[32];
};

}  // namespace

/// As it lies in the file. One process writes, on one kind of machine; the magic names the layout.
struct FlightRecorder::File {
  char magic[8];
  int32_t rank, ranks, process, entries;
  double begun;
  uint64_t count;  // entries so far
  char host[256];
  Slot slots[kEntries];

  Slot& slot(uint64_t number) { return slots[(number - 1) % kEntries]; }
};

std::filesystem::path FlightRecorder::path(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{:05}.flight", rank);
}

FlightRecorder::FlightRecorder(const std::filesystem::path& folder, int rank, int ranks) {
  static_assert(std::is_trivially_copyable_v<File>);
  const std::filesystem::path file = path(folder, rank);
  const auto refuse = [&](const char* what, int error) {
    fail_file("{}: can't {}: {}. The record of collectives is written there; free some space or choose another folder.",
              file.string(), what, std::strerror(error));
  };
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) refuse("make its folder", error.value());
  std::filesystem::remove(file, error);  // not over the old one: somebody may be reading it
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) refuse("create the file", errno);
  // A page that can't be written later would end the process.
  const int reserved = posix_fallocate(fd, 0, sizeof(File));
  void* memory = reserved == 0 ? mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int mapped = errno;
  close(fd);
  if (reserved != 0) refuse("write", reserved);
  if (memory == MAP_FAILED) refuse("map the file", mapped);
  file_ = static_cast<File*>(memory);
  file_->rank = rank;
  file_->ranks = ranks;
  file_->process = static_cast<int32_t>(getpid());
  file_->entries = kEntries;
  file_->begun = now();
  gethostname(file_->host, sizeof file_->host - 1);
  std::memcpy(file_->magic, kMagic.data(), kMagic.size());
}

FlightRecorder::~FlightRecorder() { munmap(file_, sizeof(File)); }

uint64_t FlightRecorder::asked(std::string_view group, uint64_t sequence, const Collective& c) {
  const uint64_t number = file_->count + 1;
  Slot& s = file_->slot(number);
  std::atomic_ref(s.number).store(0, std::memory_order_seq_cst);
  const TensorView& t = c.input.absent() ? c.output : c.input;
  s.sequence = sequence;
  s.layer = c.layer;
  s.bytes = static_cast<int64_t>(t.bytes());
  s.asked = now();
  s.entered = s.done = 0;
  s.kind = static_cast<int32_t>(c.kind);
  s.peer = c.peer;
  put_text(s.group, group);
  put_text(s.what, c.what);
  std::atomic_ref(s.number).store(number, std::memory_order_release);
  std::atomic_ref(file_->count).store(number, std::memory_order_release);
  return number;
}

void FlightRecorder::entered(uint64_t number) {
  Slot& s = file_->slot(number);
  if (std::atomic_ref(s.number).load(std::memory_order_acquire) == number) s.entered = now();
}

void FlightRecorder::done(uint64_t number) {
  Slot& s = file_->slot(number);
  if (std::atomic_ref(s.number).load(std::memory_order_acquire) == number) s.done = now();
}

std::string describe(CollectiveKind kind, std::string_view what, int64_t layer, uint64_t sequence,
                     std::string_view group) {
  std::string text(name_of(kind));
  if (!what.empty()) text += fmt::format(" '{}'", what);
  if (layer >= 0) text += fmt::format(" of layer {}", layer);
  return text + fmt::format(", number {} of group {}", sequence, group);
}

FlightRecord read_flight_record(const std::filesystem::path& path) {
  using File = FlightRecorder::File;
  const auto damaged = [&](const std::string& what) {
    fail_file("{}: {}; it is no record of collectives, or a damaged one. Delete it.", path.string(), what);
  };
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail_file("{}: can't open the file: {}", path.string(), std::strerror(errno));
  auto file = std::make_unique<File>();
  stream.read(reinterpret_cast<char*>(file.get()), sizeof(File));
  if (stream.gcount() != sizeof(File) || stream.peek() != std::ifstream::traits_type::eof()) {
    damaged(fmt::format("it does not have {} bytes", sizeof(File)));
  }
  if (!std::equal(kMagic.begin(), kMagic.end(), file->magic)) damaged("it begins with something else");
  const auto text = [&](const char* begin, size_t size) {
    const auto* end = static_cast<const char*>(std::memchr(begin, 0, size));
    if (end == nullptr) damaged("it holds a name without an end");
    return std::string(begin, end);
  };
  if (file->entries != FlightRecorder::kEntries || file->rank < 0 || file->ranks <= file->rank) {
    damaged(fmt::format("it says rank {} of {} with {} entries", file->rank, file->ranks, file->entries));
  }
  FlightRecord record{file->rank, file->ranks, file->process, text(file->host, sizeof file->host), file->begun, {}};
  const uint64_t kept = std::min<uint64_t>(file->count, FlightRecorder::kEntries);
  for (uint64_t i = 0; i < kept; ++i) {
    const uint64_t number = file->count - kept + 1 + i;
    const Slot& s = file->slot(number);
    // Overwritten by an entry whose count was not written any more.
    if (s.number == 0 || s.number == number + FlightRecorder::kEntries) continue;
    if (s.number != number || s.kind < 0 || s.kind >= static_cast<int32_t>(kCollectiveNames.size()) || s.bytes < 0) {
      damaged(fmt::format("entry {} makes no sense", number));
    }
    record.entries.push_back({.group = text(s.group, sizeof s.group),
                              .kind = static_cast<CollectiveKind>(s.kind),
                              .what = text(s.what, sizeof s.what),
                              .layer = s.layer,
                              .sequence = s.sequence,
                              .bytes = s.bytes,
                              .peer = s.peer,
                              .state = s.done > 0      ? FlightState::done
                                       : s.entered > 0 ? FlightState::entered
                                                       : FlightState::asked,
                              .asked = s.asked,
                              .entered = s.entered,
                              .done = s.done});
  }
  return record;
}

}  // namespace yoke
