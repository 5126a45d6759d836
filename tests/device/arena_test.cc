#include "device/arena.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace yoke {
namespace {

struct Named {
  std::string name;
  size_t offset, bytes;
};

/// What the arena should do, the naive way: every list is kept in full, and the peak's is copied at once.
struct Replay {
  std::vector<Named> alive, at_peak;
  size_t used = 0, peak = 0;

  void allocate(const std::string& name, size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    alive.push_back({name, used, bytes});
    used += bytes;
    if (used > peak) {
      peak = used;
      at_peak = alive;
      std::erase_if(at_peak, [](const Named& n) { return n.bytes == 0; });
    }
  }
  void release(size_t count) {
    while (alive.size() > count) {
      used -= alive.back().bytes;
      alive.pop_back();
    }
  }
};

void expect_equal(const Arena& arena, const Replay& want) {
  ASSERT_EQ(arena.used(), want.used);
  ASSERT_EQ(arena.peak(), want.peak);
  // A tensor of no bytes that comes right after the peak may be listed; it makes no difference to it.
  auto got = arena.alive_at_peak();
  std::erase_if(got, [](const Arena::Allocation& a) { return a.bytes == 0; });
  ASSERT_EQ(got.size(), want.at_peak.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].name, want.at_peak[i].name);
    ASSERT_EQ(got[i].offset, want.at_peak[i].offset);
    ASSERT_EQ(got[i].bytes, want.at_peak[i].bytes);
  }
}

TEST(Arena, RandomSequencesEqualANaiveReplay) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const RandomStream random{seed};
    const MemoryBlock block(size_t{1} << 22);
    Arena real(block.data(), block.bytes()), counting;
    Replay want;
    struct Marks {
      Arena::Mark real, counting;
      size_t count;
    };
    std::vector<Marks> marks;
    for (uint64_t step = 0; step < 300; ++step) {
      const double choice = random.uniform(2 * step);
      const uint64_t word = random.word(2 * step + 1);
      if (choice < 0.5) {
        // Sizes of zero, and repeats of one size that reach the same peak twice, are among them.
        const int64_t size = word % 4 ? static_cast<int64_t>(word % 6000) : static_cast<int64_t>(word % 3) * 256;
        const std::string name = "t" + std::to_string(step);
        const TensorView view = real.allocate(name.c_str(), DType::bf16, {size});
        ASSERT_EQ(view.data, static_cast<char*>(block.data()) + want.used);
        ASSERT_EQ(counting.allocate(name.c_str(), DType::bf16, {size}).data, nullptr);
        want.allocate(name, static_cast<size_t>(size) * 2);
      } else if (choice < 0.75) {
        marks.push_back({real.mark(), counting.mark(), want.alive.size()});
      } else if (!marks.empty()) {
        marks.resize(marks.size() - std::min<size_t>(word % 3, marks.size() - 1));
        real.release(marks.back().real);
        counting.release(marks.back().counting);
        want.release(marks.back().count);
        marks.pop_back();
      }
      expect_equal(real, want);
      expect_equal(counting, want);
      if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
    }
  }
}

// What an observer is told adds up to what the arena says, kind by kind.
TEST(Arena, ObserversSeeEveryChangeAndThePeakHasItsMoment) {
  Arena arena;
  std::array<int64_t, kMemoryKinds> bytes{};
  std::vector<std::string> seen;
  arena.observe([&](const Arena::Allocation& a, bool allocated) {
    bytes[static_cast<size_t>(a.kind)] +=
        static_cast<int64_t>(allocated ? a.bytes : 0) - static_cast<int64_t>(allocated ? 0 : a.bytes);
    seen.push_back((allocated ? "+" : "-") + a.name);
  });
  arena.allocate("w", DType::bf16, {64}, MemoryKind::weights);
  arena.enter_stage("step");
  arena.enter("forward", 3);
  {
    const ArenaScope scope(arena);
    arena.allocate("a", DType::f32, {32}, MemoryKind::saved);
    arena.allocate("tiles", DType::f32, {16});
    EXPECT_EQ(bytes[static_cast<size_t>(MemoryKind::workspace)], 64);
    arena.enter("backward", 2);
  }
  arena.allocate("b", DType::f32, {48}, MemoryKind::saved);  // as high as the peak, but not the first
  EXPECT_EQ(arena.peak(), 320u);
  EXPECT_STREQ(arena.moment_of_peak().part, "forward");
  EXPECT_EQ(arena.moment_of_peak().layer, 3);
  arena.observe({});
  arena.allocate("unseen", DType::u8, {1});
  EXPECT_EQ(seen, (std::vector<std::string>{"+w", "+a", "+tiles", "-tiles", "-a", "+b"}));
  EXPECT_EQ(bytes[static_cast<size_t>(MemoryKind::weights)], 128);
  EXPECT_EQ(bytes[static_cast<size_t>(MemoryKind::saved)], 192);
  EXPECT_EQ(bytes[static_cast<size_t>(MemoryKind::workspace)], 0);
  EXPECT_EQ(arena.peak(), 384u);
  EXPECT_STREQ(arena.moment_of_peak().part, "backward");
  EXPECT_EQ(arena.moment_of_peak().layer, 2);
}

TEST(Arena, SumsThatOverflowAreErrorsThatNameTheTensor) {
  Arena arena;
  arena.allocate("first", DType::u8, {int64_t{1} << 62});
  for (const int64_t size : {int64_t{1} << 62, INT64_MAX - 64}) {
    try {
      arena.allocate("second", DType::u8, {size});
      FAIL() << size;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::does_not_fit);
      EXPECT_NE(std::string(error.what()).find("'second'"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(arena.used(), size_t{1} << 62);
}

TEST(Arena, ScopesReleaseAlsoWhenLeftByAnException) {
  Arena arena;
  arena.allocate("kept", DType::f32, {10});
  const size_t before = arena.used();
  try {
    const ArenaScope scope(arena);
    arena.allocate("scratch", DType::f32, {1000});
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(arena.used(), before);
  EXPECT_EQ(arena.peak(), before + 4032);
  EXPECT_EQ(arena.alive_at_peak().size(), 2u);
}

TEST(Arena, SizesThatOverflowAreTheUsersMistake) {
  Arena arena;
  EXPECT_THROW(arena.allocate("huge", DType::f32, {int64_t{1} << 62}), UserError);
  EXPECT_THROW(arena.allocate("huge", DType::f32, {int64_t{1} << 40, int64_t{1} << 40}), UserError);
  EXPECT_EQ(arena.used(), 0u);
}

TEST(ArenaDeathTest, RunningOutIsOurBug) {
  const MemoryBlock block(4096);
  Arena arena(block.data(), block.bytes());
  arena.allocate("fits", DType::u8, {4096});
  EXPECT_DEATH(arena.allocate("more", DType::u8, {1}), "'more' needs 64 bytes");
}

TEST(MemoryBlock, MovesAndRefuses) {
  MemoryBlock a(4096), b(8192);
  void* at = b.data();
  static_cast<char*>(at)[8191] = 1;
  a = std::move(b);
  EXPECT_EQ(a.data(), at);
  EXPECT_EQ(a.bytes(), 8192u);
  EXPECT_EQ(MemoryBlock(0).data(), nullptr);
  try {
    MemoryBlock(size_t{1} << 60);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::does_not_fit);
  }
}

}  // namespace
}  // namespace yoke
