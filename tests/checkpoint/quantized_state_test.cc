#include <cmath>
#include <random>

#include "checkpoint/moments.h"
#include "tests/checkpoint/layouts.h"
#include "tests/checkpoint/scratch.h"

namespace yoke::test {
namespace {

/// A rank's share of a moment of 8 bits.
struct Share {
  Share(const InventedRank& rank, bool is_signed) : rank(rank) {
    const int64_t elements = rank.held.elements();
    codes.assign(static_cast<size_t>(elements), 0);
    scales.assign(static_cast<size_t>((elements + kMomentBlock - 1) / kMomentBlock), -1.0f);
    moment = {.values = "m",
              .scales = "s",
              .is_signed = is_signed,
              .layout = rank.layout,
              .held = rank.held,
              .codes =
                  [this](const FlatRange& r) {
                    return TensorView(codes.data() + r.begin - this->rank.held.begin, DType::u8, {r.elements()});
                  },
              .scaling =
                  [this](const FlatRange& r) {
                    const int64_t first = r.begin / kMomentBlock, end = (r.end + kMomentBlock - 1) / kMomentBlock;
                    return TensorView(scales.data() + first - this->rank.held.begin / kMomentBlock, DType::f32,
                                      {end - first});
                  }};
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  float value(int64_t i) const {
    return scales[static_cast<size_t>(i / kMomentBlock)] *
           dynamic_map(moment.is_signed).values[codes[static_cast<size_t>(i)]];
  }
  std::vector<float> values() const {
    std::vector<float> all;
    for (int64_t i = 0; i < rank.held.elements(); ++i) all.push_back(value(i));
    return all;
  }

  InventedRank rank;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  QuantizedMoment moment;
};

using Shares = std::vector<std::unique_ptr<Share>>;

Shares shares_of(const InventedSplit& split, bool is_signed) {
  Shares shares;
  for (const InventedRank& rank : split.ranks) shares.push_back(std::make_unique<Share>(rank, is_signed));
  return shares;
}

/// Quantizes what each has of the tensor's values.
void fill(const Shares& shares, const std::vector<float>& all, const Shape& global) {
  for (const auto& share : shares) {
    std::vector<float> local(share->codes.size(), 0.0f);
    for (const FlatPiece& piece : flat_pieces(share->rank.layout, share->rank.held)) {
      for_each_run(piece.region, Region::whole(global), [&](int64_t to, int64_t from, int64_t n) {
        std::copy_n(all.begin() + from, n, local.begin() + piece.begin - share->rank.held.begin + to);
      });
    }
    for (size_t i = 0; i < local.size(); i += kMomentBlock) {
      share->scales[i / kMomentBlock] =
          quantize_block(local.data() + i, std::min<int64_t>(kMomentBlock, static_cast<int64_t>(local.size() - i)),
                         dynamic_map(share->moment.is_signed), share->codes.data() + i);
    }
  }
}

bool all_align(const Shares& shares) {
  return std::all_of(shares.begin(), shares.end(),
                     [](const auto& share) { return blocks_align(share->rank.layout, kMomentBlock); });
}

void save(const std::filesystem::path& folder, const Shares& shares) {
  std::vector<StatePiece> pieces;
  for (const auto& share : shares) add_pieces(pieces, share->moment, share->rank.written, !all_align(shares));
  save_checkpoint(Parallel::self(), folder, 1, {}, pieces, 1);
}

/// The whole tensor as it is with these shares.
std::vector<float> gathered(const Shares& shares, const Shape& global) {
  std::vector<float> all(static_cast<size_t>(global.elements()), NAN);
  for (const auto& share : shares) {
    for (const FlatPiece& piece : flat_pieces(share->rank.layout, share->rank.held)) {
      for_each_run(piece.region, Region::whole(global), [&](int64_t to, int64_t from, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          all[static_cast<size_t>(from + i)] = share->value(piece.begin - share->rank.held.begin + to + i);
        }
      });
    }
  }
  return all;
}

TEST(QuantizeBlock, TakesTheNearestCode) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const bool is_signed : {true, false}) {
    const DynamicMap& map = dynamic_map(is_signed);
    for (int round = 0; round < 50; ++round) {
      std::vector<float> block(kMomentBlock);
      for (float& x : block) {
        x = std::ldexp(normal(random), static_cast<int>(random() % 20) - 10);
        if (!is_signed) x = std::abs(x);
      }
      // The element of the largest magnitude is positive: there is a code for exactly +1, none for -1.
      block[7] = 1e5f;
      std::vector<uint8_t> codes(block.size());
      const float scale = quantize_block(block.data(), kMomentBlock, map, codes.data());
      EXPECT_EQ(scale, 1e5f);
      for (size_t i = 0; i < block.size(); ++i) {
        const double x = static_cast<double>(block[i]) / 1e5;
        double nearest = INFINITY;
        for (const float v : map.values) {
          if (!is_signed && v == 0 && x > 0) continue;
          nearest = std::min(nearest, std::abs(static_cast<double>(v) - x));
        }
        EXPECT_NEAR(std::abs(static_cast<double>(map.values[codes[i]]) - x), nearest, 1e-7 * std::abs(x));
      }
    }
  }
}

TEST(QuantizeBlock, GivesBackWhatCameFromCodes) {
  std::mt19937 random(4);
  for (const bool is_signed : {true, false}) {
    const DynamicMap& map = dynamic_map(is_signed);
    for (int round = 0; round < 2000; ++round) {
      // Every block that training can make holds the code of the largest magnitude, of either sign.
      const float scale =
          std::ldexp(1 + static_cast<float>(random() % 8388608) / 8388608, static_cast<int>(random() % 80) - 60);
      std::vector<float> block(round % 3 == 0 ? 100 : kMomentBlock);
      for (float& x : block) x = scale * map.values[random() % 256];
      block[random() % block.size()] = scale * map.values[round % 2 == 0 && is_signed ? 0 : 255];
      std::vector<uint8_t> codes(block.size());
      const float got = quantize_block(block.data(), static_cast<int64_t>(block.size()), map, codes.data());
      for (size_t i = 0; i < block.size(); ++i) ASSERT_EQ(got * map.values[codes[i]], block[i]) << round;
    }
  }
}

TEST(Moments, EveryLayoutReadsEveryOther) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  int exact = 0, through_values = 0;
  for (int round = 0; round < 120; ++round) {
    const Scratch scratch(Scratch::Where::memory);
    InventedTensor tensor(random);
    const bool is_signed = round % 2 == 0, lines_up = round % 3 == 0;
    if (lines_up) tensor.global = {40, 256}, tensor.parts = {24, 16};  // rows are blocks
    if (round % 3 == 1) tensor.global = {36, 512}, tensor.parts = {36};
    SCOPED_TRACE(fmt::format("round {}, {}", round, tensor.global.str()));
    std::vector<float> all(static_cast<size_t>(tensor.global.elements()));
    for (float& x : all) x = is_signed ? normal(random) : std::abs(normal(random));
    const Shares from = shares_of(tensor.split(random, kMomentBlock), is_signed);
    fill(from, all, tensor.global);
    const auto saved = gathered(from, tensor.global);
    save(scratch / "c", from);
    const Checkpoint checkpoint(scratch / "c" / "step-000001");
    EXPECT_EQ(checkpoint.dtype("m"), all_align(from) ? DType::u8 : DType::f32);

    // The same layout again: the same values, bit for bit.
    InventedSplit again;
    for (const auto& share : from) again.ranks.push_back(share->rank);
    const Shares same = shares_of(again, is_signed);
    for (const auto& share : same) read_moment(checkpoint, share->moment);
    for (size_t i = 0; i < same.size(); ++i) {
      const auto want = from[i]->values(), got = same[i]->values();
      for (const FlatPiece& piece : flat_pieces(same[i]->rank.layout, same[i]->rank.held)) {
        const auto at = static_cast<size_t>(piece.begin - same[i]->rank.held.begin);
        for (size_t j = at; j < at + static_cast<size_t>(piece.region.shape.elements()); ++j)
          ASSERT_EQ(got[j], want[j]);
      }
    }
    // Another one: codes where blocks are the same, else rounded once more.
    const Shares to = shares_of(tensor.split(random, kMomentBlock), is_signed);
    for (const auto& share : to) read_moment(checkpoint, share->moment);
    const auto got = gathered(to, tensor.global);
    const float largest =
        *std::max_element(saved.begin(), saved.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    for (size_t i = 0; i < got.size(); ++i) {
      if (all_align(from) && all_align(to)) {
        ASSERT_EQ(got[i], saved[i]) << i;
      } else {
        // Half the widest distance of neighbouring values, 0.9 / 64 (unsigned 0.9 / 128), of the scale.
        ASSERT_NEAR(got[i], saved[i], std::abs(largest) * (is_signed ? 0.9 / 64 : 0.9 / 128) / 2 * 1.001) << i;
      }
    }
    (all_align(from) && all_align(to) ? exact : through_values) += 1;
    // A layout that keeps values.
    for (const auto& share : to) {
      const FlatRange& held = share->rank.held;
      std::vector<float> values(static_cast<size_t>(held.elements()), NAN);
      read_moment_values(checkpoint, share->moment, held, values.data());
      for (const FlatPiece& piece : flat_pieces(share->rank.layout, held)) {
        for_each_run(piece.region, Region::whole(tensor.global), [&](int64_t at, int64_t in, int64_t n) {
          for (int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(values[static_cast<size_t>(piece.begin - held.begin + at + i)],
                      saved[static_cast<size_t>(in + i)]);
          }
        });
      }
    }
  }
  EXPECT_GT(exact, 10);
  EXPECT_GT(through_values, 10);
}

}  // namespace
}  // namespace yoke::test
