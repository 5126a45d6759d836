#include "data/token_cache.h"

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <set>

#include "base/file.h"
#include "data/piece.h"
#include "data_test_util.h"

namespace yoke {
namespace {

using Paths = std::vector<std::filesystem::path>;

class Cache : public DataTest {
 protected:
  std::shared_ptr<const TokenStore> open(const Paths& files, const Tokenizer& tokenizer = ByteIds(),
                                         Format format = Format::text, int threads = 1) const {
    return open_corpus(files, format, tokenizer, folder_ / "cache", threads);
  }
  std::set<std::string> cached() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache"))
      names.insert(entry.path().filename().string());
    return names;
  }
};

std::vector<int32_t> all_tokens(const TokenStore& store) {
  std::vector<int32_t> ids(static_cast<size_t>(store.tokens()));
  store.read(0, ids);
  return ids;
}

TEST_F(Cache, HoldsTheDocumentsInOrderWithOneEndEach) {
  const auto store = open({put("b.txt", "one"), put("e.txt", ""), put("a.txt", "two\r\n")});
  EXPECT_EQ(all_tokens(*store), std::vector<int32_t>({'o', 'n', 'e', 256, 't', 'w', 'o', '\n', 256}));
  EXPECT_EQ(store->documents(), 2);
  EXPECT_EQ(store->counts().files, 3);
  EXPECT_EQ(store->counts().empty_files, 1);
  EXPECT_EQ(store->counts().crlf_files, 1);
}

TEST_F(Cache, DoesNotDependOnTheNumberOfThreads) {
  std::mt19937 random(2);
  Paths files;
  std::vector<int32_t> expected;
  const PairTokenizer tokenizer(true);
  for (int f = 0; f < 40; ++f) {
    std::string text;
    const size_t size = f == 7 ? 3 * kPieceBytes : random() % 50'000;
    while (text.size() < size) text += random() % 9 == 0 ? "line\nNext" : "word ";
    files.push_back(put(fmt::format("f{}", f), text));
    if (text.empty()) continue;
    const auto ids = tokenizer.encode(text);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(PairTokenizer::kEos);
  }
  for (const int threads : {1, 2, 5}) {
    std::filesystem::remove_all(folder_ / "cache");
    EXPECT_TRUE(all_tokens(*open(files, tokenizer, Format::text, threads)) == expected) << threads;
  }
}

TEST_F(Cache, IsFoundAgainAndKeyedByAllThatDecidesIds) {
  const auto a = put("a.txt", "{\"text\": \"one\"}"), b = put("b.txt", "{\"text\": \"two\"}");
  std::set<std::string> keys;
  const auto is_new = [&](const Paths& files, const Tokenizer& tokenizer, Format format) {
    return keys.insert(cache_key(files, format, tokenizer)).second;
  };
  EXPECT_TRUE(is_new({a, b}, PairTokenizer(), Format::text));
  EXPECT_FALSE(is_new({a, b}, PairTokenizer(), Format::text));
  EXPECT_FALSE(is_new({folder_ / "." / "a.txt", b}, PairTokenizer(), Format::text));
  EXPECT_TRUE(is_new({b, a}, PairTokenizer(), Format::text)) << "another order";
  EXPECT_TRUE(is_new({a}, PairTokenizer(), Format::text)) << "other files";
  EXPECT_TRUE(is_new({a, b}, PairTokenizer(), Format::jsonl)) << "another format";
  EXPECT_TRUE(is_new({a, b}, PairTokenizer(false, "other"), Format::text)) << "another tokenizer";
  EXPECT_TRUE(is_new({a, b}, PairTokenizer(false, "pairs", true), Format::text)) << "a begin-of-sequence token";
  EXPECT_TRUE(is_new({a, b}, ByteIds(65), Format::text));
  EXPECT_TRUE(is_new({a, b}, ByteIds(66), Format::text)) << "another end-of-sequence token";
  const auto time = std::filesystem::last_write_time(a);
  put("a.txt", "{\"text\": \"longer\"}");
  std::filesystem::last_write_time(a, time);
  EXPECT_TRUE(is_new({a, b}, PairTokenizer(), Format::text)) << "another size";
  put("a.txt", "{\"text\": \"LONGER\"}");
  std::filesystem::last_write_time(a, time + std::chrono::nanoseconds(4000));
  EXPECT_TRUE(is_new({a, b}, PairTokenizer(), Format::text)) << "another time";

  open({a, b});
  const auto index = folder_ / "cache" / (cache_key({a, b}, Format::text, ByteIds()) + ".index");
  const auto written = std::filesystem::last_write_time(index);
  open({a, b});
  EXPECT_EQ(std::filesystem::last_write_time(index), written) << "built once";
  put("a.txt", "new");
  EXPECT_EQ(all_tokens(*open({a}))[0], 'n');
}

TEST_F(Cache, WhenDamagedIsBuiltAgain) {
  const Paths files = {put("a.txt", "some text"), put("b.txt", "more")};
  const auto expected = all_tokens(*open(files));
  const std::string base = (folder_ / "cache" / cache_key(files, Format::text, ByteIds())).string();
  const std::string index = read_file(base + ".index");
  std::string flipped = index;
  flipped[40] = static_cast<char>(flipped[40] ^ 1);
  for (const auto& damage : std::vector<std::function<void()>>{
           [&] { std::filesystem::resize_file(base + ".tokens", 4); },
           [&] { std::filesystem::remove(base + ".tokens"); },
           [&] { std::filesystem::remove(base + ".index"); },
           [&] { std::filesystem::resize_file(base + ".index", index.size() - 5); },
           [&] { write_file(base + ".index", ""); },
           [&] { write_file(base + ".index", flipped); },
       }) {
    damage();
    EXPECT_EQ(all_tokens(*open(files)), expected);
    EXPECT_EQ(cached().size(), 2u);
  }
}

TEST_F(Cache, EmptyOrUnusableCorporaAreErrors) {
  EXPECT_TRUE(holds(error_of([&] {
                      open({put("a.txt", ""), put("b.txt", "\xef\xbb\xbf")});
                    }),
                    "the corpus is empty: 2 files, 2 of them empty"));
  EXPECT_TRUE(holds(error_of([&] { open({put("a.jsonl", "{\"text\": \"\"}\n\n")}, ByteIds(), Format::jsonl); }),
                    "1 documents without tokens"));
  EXPECT_TRUE(holds(error_of([&] { open({put("a.txt", "x")}, ByteIds(std::nullopt)); }), "end-of-sequence"));
  EXPECT_TRUE(holds(error_of([&] { open({folder_ / "missing.txt"}); }), "missing.txt: can't be opened"));
  const auto good = put("good.txt", "x"), bad = put("bad.txt", "\xff"), worse = put("worse.txt", "\xfe");
  for (const int threads : {1, 4})
    EXPECT_TRUE(holds(error_of([&] {
                        open({good, bad, worse}, ByteIds(), Format::text, threads);
                      }),
                      bad.string() + ": byte 0 (0xff)"))
        << "the first fault is told, whatever the threads do";
  EXPECT_TRUE(cached().empty()) << "nothing half-written stays";
  const std::string folder_is_file = error_of([&] { open_corpus({good}, Format::text, ByteIds(), good / "cache", 1); });
  EXPECT_TRUE(holds(folder_is_file, (good / "cache").string()));
}

TEST_F(Cache, ADiskThatFillsUpLeavesNothingBehind) {
  const auto file = put("a.txt", std::string(4 << 20, 'x'));
  struct rlimit old {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit small = old;
  small.rlim_cur = 2 << 20;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of([&] { open({file}); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(holds(message, ".tokens: can't be written: "));
  EXPECT_TRUE(cached().empty());
  EXPECT_EQ(open({file})->tokens(), (4 << 20) + 1) << "and works once there is room";
}

#if !defined(__SANITIZE_ADDRESS__)
/// A line of /proc/self/status in KiB.
int64_t status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  return -1;
}

TEST_F(Cache, IsBuiltInBoundedMemory) {
  constexpr int64_t kMiB = 1 << 20;
  std::string block;
  while (block.size() < static_cast<size_t>(kMiB)) block += "It was a line of text like all the others\n";
  {
    std::ofstream text(folder_ / "big.txt"), lines(folder_ / "big.jsonl");
    for (int i = 0; i < 150; ++i) text << block;
    const std::string line = "{\"text\": \"It was a line of text like all the others\"}\n";
    for (int64_t i = 0; i < 150 * kMiB / static_cast<int64_t>(line.size()); ++i) lines << line;
  }
  for (const char* name : {"big.txt", "big.jsonl"}) {
    const Format format = name == std::string("big.txt") ? Format::text : Format::jsonl;
    // 5 resets the peak (proc(5)).
    std::ofstream("/proc/self/clear_refs") << "5";
    const int64_t before = status("VmRSS");
    const auto store = open({folder_ / name}, ByteIds(), format, 2);
    EXPECT_GT(store->tokens(), 100 * kMiB);
    const int64_t grown = status("VmHWM") - before;
    EXPECT_LT(grown, 80 * 1024) << name;
    std::printf("%s: the peak grew by %lld KiB\n", name, static_cast<long long>(grown));
  }
}
#endif

}  // namespace
}  // namespace yoke
