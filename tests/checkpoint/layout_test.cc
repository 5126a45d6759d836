#include "checkpoint/layout.h"

#include <cstring>
#include <random>

#include "checkpoint/training_state.h"
#include "tests/checkpoint/layouts.h"
#include "tests/checkpoint/scratch.h"

namespace yoke::test {
namespace {

TEST(Layout, CoverFaultsAreFound) {
  const Shape global{6, 8};
  const Region top{{0, 0}, {4, 8}}, left{{4, 0}, {2, 3}}, right{{4, 3}, {2, 5}};
  EXPECT_EQ(cover_fault(global, {right, top, left}), "");
  EXPECT_EQ(cover_fault(global, {top, left}), "38 of its 48 elements are there");
  EXPECT_EQ(cover_fault(global, {top, left, Region{{3, 3}, {3, 5}}}), "[0:4, 0:8] and [3:6, 3:8] overlap");
  EXPECT_EQ(cover_fault(global, {top, left, left, Region{{4, 3}, {2, 2}}}), "[4:6, 0:3] and [4:6, 0:3] overlap");
  EXPECT_CONTAINS(cover_fault(global, {Region{{5, 0}, {2, 8}}}), "is no part of [6, 8]");
}

TEST(Layout, AFlatRangeOfAMatrixIsUpToThreeBoxes) {
  // Rows 10.. and 30.. of a global matrix, fused, the columns 4 to 8 of 12.
  const TensorLayout layout{{40, 12}, {5, 4}, {{0, {{10, 4}, {2, 4}}}, {2, {{30, 4}, {3, 4}}}}};
  const auto pieces = flat_pieces(layout, {2, 19});
  const std::vector<std::pair<int64_t, Region>> want = {
      {2, {{10, 6}, {1, 2}}}, {4, {{11, 4}, {1, 4}}}, {8, {{30, 4}, {2, 4}}}, {16, {{32, 4}, {1, 3}}}};
  ASSERT_EQ(pieces.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(pieces[i].begin, want[i].first);
    EXPECT_EQ(pieces[i].region, want[i].second) << pieces[i].region.str();
  }
  EXPECT_TRUE(flat_pieces(layout, {7, 7}).empty());
}

TEST(Layout, RowsOfATableLieInTheWholeModels) {
  const ModelConfig config{
      .vocabulary = 53, .hidden = 24, .layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 6, .mlp = 20};
  const ParameterTable whole(config);
  for (const ParameterRow& row : whole.rows()) {
    const TensorLayout layout = layout_of(row);
    ASSERT_EQ(layout.parts.size(), 1u) << row.name;  // a rank that has it all has one box, fused parts or not
    EXPECT_EQ(layout.parts[0].region, Region::whole(row.shape));
  }
  // Two ranks hold each element once, but for what is not divided; the vocabulary is padded by one.
  const ParameterTable first(config, {.tensor = {0, 2}}), second(config, {.tensor = {1, 2}});
  for (size_t i = 0; i < whole.size(); ++i) {
    std::vector<Region> boxes;
    for (const ParameterTable* table : {&first, &second}) {
      if ((*table)[i].split == ParameterRow::Split::none && table == &second) continue;
      const TensorLayout layout = layout_of((*table)[i]);
      EXPECT_EQ(layout.global, whole[i].shape);
      for (const LayoutPart& part : layout.parts) boxes.push_back(part.region);
    }
    EXPECT_EQ(cover_fault(whole[i].shape, boxes), "") << whole[i].name;
  }
  EXPECT_EQ(second[0].shape, (Shape{27, 24}));
  EXPECT_EQ(layout_of(second[0]).parts[0].region, (Region{{27, 0}, {26, 24}}));
  EXPECT_EQ(layout_of(second[second.first_of_layer(0) + 1]).parts.size(), 3u);  // q, k and v
}

TEST(Layout, CopiesShareWhatTheyHold) {
  for (const FlatRange range : {FlatRange{0, 100}, FlatRange{70000, 70001}, FlatRange{12345, 1234567}}) {
    for (const int64_t copies : {1, 2, 3, 8}) {
      int64_t at = range.begin;
      for (int64_t i = 0; i < copies; ++i) {
        const FlatRange share = share_of_copy(range, i, copies);
        EXPECT_EQ(share.begin, at);
        EXPECT_TRUE(share.elements() == 0 || share.end == range.end || share.end % kCopyGrain == 0);
        at = share.end;
      }
      EXPECT_EQ(at, range.end);
    }
  }
}

TEST(Layout, WhereBlocksAlign) {
  const auto rows = [](int64_t begin, int64_t count) { return Region{{begin, 0}, {count, 8}}; };
  EXPECT_TRUE(blocks_align(TensorLayout::whole({10, 7}), 16));
  EXPECT_TRUE(blocks_align(TensorLayout::whole({70}), 16));
  EXPECT_TRUE(blocks_align({{12, 8}, {6, 8}, {{0, rows(6, 6)}}}, 16));
  EXPECT_FALSE(blocks_align({{12, 8}, {6, 8}, {{0, rows(5, 6)}}}, 16));                  // begins inside a block
  EXPECT_FALSE(blocks_align({{12, 8}, {5, 8}, {{0, rows(0, 5)}}}, 16));                  // ends inside a block
  EXPECT_TRUE(blocks_align({{13, 8}, {7, 8}, {{0, rows(6, 7)}}}, 16));                   // ends with the tensor
  EXPECT_TRUE(blocks_align({{13, 8}, {8, 8}, {{0, rows(6, 7)}}}, 16));                   // then padding
  EXPECT_TRUE(blocks_align({{13, 8}, {4, 8}, {{0, rows(2, 1)}, {1, rows(3, 3)}}}, 16));  // adjacent parts are one
  EXPECT_FALSE(blocks_align({{13, 8}, {4, 8}, {{0, rows(2, 1)}, {1, rows(5, 3)}}}, 16));
  EXPECT_FALSE(blocks_align({{12, 16}, {12, 8}, {{0, {{0, 0}, {12, 8}}}}}, 16));  // columns
  const TensorLayout blocks = layout_of_blocks({{13, 8}, {9, 8}, {{0, rows(4, 2)}, {2, rows(6, 7)}}}, 16);
  EXPECT_EQ(blocks.global, (Shape{7}));
  EXPECT_EQ(blocks.local, (Shape{5}));
  ASSERT_EQ(blocks.parts.size(), 1u);
  EXPECT_EQ(blocks.parts[0].region, (Region{{2}, {5}}));
}

/// One element of a global tensor, a function of its place alone.
int32_t element(const Shape& global, const Region& box, int64_t i) {
  const int64_t cols = box.shape.rank() == 1 ? 1 : box.shape[1], width = global.rank() == 1 ? 1 : global[1];
  return static_cast<int32_t>((box.offset[0] + i / cols) * width + (width == 1 ? 0 : box.offset[1] + i % cols) + 1);
}

// Random tensors, cut in a random way, saved, read under other random layouts: every element once, in its place.
TEST(Layout, AnyLayoutReadsAnyOther) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    const Scratch scratch(Scratch::Where::memory);
    const InventedTensor tensor(random);
    SCOPED_TRACE(fmt::format("round {}, {}", round, tensor.global.str()));
    // What all ranks of one layout hold, as one process's pieces.
    const InventedSplit split = tensor.split(random);
    std::vector<StatePiece> pieces;
    std::vector<Region> regions;
    std::vector<std::vector<int32_t>> memory;
    for (const InventedRank& rank : split.ranks) {
      auto& local = memory.emplace_back(static_cast<size_t>(rank.layout.local.elements()), -1);
      for (const FlatPiece& piece : flat_pieces(rank.layout, {0, rank.layout.local.elements()})) {
        for (int64_t i = 0; i < piece.region.shape.elements(); ++i) {
          local[static_cast<size_t>(piece.begin + i)] = element(tensor.global, piece.region, i);
        }
      }
    }
    for (size_t r = 0; r < split.ranks.size(); ++r) {
      for (const FlatPiece& piece : flat_pieces(split.ranks[r].layout, split.ranks[r].written)) {
        regions.push_back(piece.region);
        pieces.push_back({"t", DType::i32, tensor.global, piece.region, [&memory, r, piece] {
                            return TensorView(memory[r].data() + piece.begin, DType::i32, piece.region.shape);
                          }});
      }
    }
    EXPECT_EQ(cover_fault(tensor.global, regions), "");
    save_checkpoint(Parallel::self(), scratch / "c", 1, {}, pieces, 1);
    const Checkpoint checkpoint(scratch / "c" / "step-000001");
    for (int other = 0; other < 4; ++other) {
      for (const InventedRank& rank : tensor.split(random).ranks) {
        for (const FlatPiece& piece : flat_pieces(rank.layout, rank.held)) {
          std::vector<int32_t> got(static_cast<size_t>(piece.region.shape.elements()), -1);
          checkpoint.read("t", tensor.global, piece.region, TensorView(got.data(), DType::i32, piece.region.shape));
          for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(got[i], element(tensor.global, piece.region, static_cast<int64_t>(i))) << piece.region.str();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace yoke::test
