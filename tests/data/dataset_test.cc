#include "data/dataset.h"

#include <cmath>
#include <cstring>

#include "base/file.h"
#include "data_test_util.h"

namespace yoke {
namespace {

/// One row as the contract says it, worked out the slow way: every position looked up by itself.
struct NaiveRow {
  std::vector<int32_t> tokens, targets, positions, key_begin;
  int64_t supervised() const {
    return std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t != Batch::kIgnore; });
  }
};

constexpr int32_t kEos = 1;

NaiveRow empty_row(int64_t length) {
  NaiveRow row;
  row.tokens.assign(length, kEos);
  row.targets.assign(length, Batch::kIgnore);
  row.positions.assign(length, 0);
  for (int64_t i = 0; i < length; ++i) row.key_begin.push_back(static_cast<int32_t>(i));
  return row;
}

std::vector<NaiveRow> naive_packed(const std::vector<std::vector<int32_t>>& documents, int64_t length) {
  std::vector<int32_t> stream, owner;
  for (size_t d = 0; d < documents.size(); ++d) {
    for (const int32_t id : documents[d]) stream.push_back(id), owner.push_back(static_cast<int32_t>(d));
    stream.push_back(kEos), owner.push_back(static_cast<int32_t>(d));
  }
  std::vector<NaiveRow> rows;
  for (size_t begin = 0; begin < stream.size(); begin += static_cast<size_t>(length)) {
    NaiveRow row = empty_row(length);
    for (size_t i = 0; i < static_cast<size_t>(length) && begin + i < stream.size(); ++i) {
      const size_t at = begin + i;
      row.tokens[i] = stream[at];
      if (at + 1 < stream.size() && owner[at + 1] == owner[at]) row.targets[i] = stream[at + 1];
      size_t first = i;
      while (first > 0 && owner[begin + first - 1] == owner[at]) --first;
      row.key_begin[i] = static_cast<int32_t>(first);
      row.positions[i] = static_cast<int32_t>(i - first);
    }
    if (row.supervised() > 0) rows.push_back(row);
  }
  return rows;
}

std::vector<NaiveRow> naive_unpacked(const std::vector<std::vector<int32_t>>& documents, int64_t length) {
  std::vector<NaiveRow> rows;
  for (std::vector<int32_t> document : documents) {
    document.push_back(kEos);
    for (size_t begin = 0; begin + 1 < document.size(); begin += static_cast<size_t>(length)) {
      NaiveRow row = empty_row(length);
      for (size_t i = 0; i < static_cast<size_t>(length) && begin + i + 1 < document.size(); ++i) {
        row.tokens[i] = document[begin + i];
        row.targets[i] = document[begin + i + 1];
        row.positions[i] = static_cast<int32_t>(i);
        row.key_begin[i] = 0;
      }
      rows.push_back(row);
    }
  }
  return rows;
}

NaiveRow read_row(const Dataset& data, int64_t row) {
  // Read into the middle of a batch full of other numbers: nothing else may change, everything of the row must.
  const int64_t length = data.sequence_length();
  Batch batch = empty_batch(3, length);
  for (auto* field : {&batch.tokens, &batch.targets, &batch.positions, &batch.key_begin})
    std::fill(field->begin(), field->end(), 77777);
  data.read(row, batch, 1);
  NaiveRow found;
  const auto cut = [&](const std::vector<int32_t>& field) {
    EXPECT_TRUE(std::all_of(field.begin(), field.begin() + length, [](int32_t x) { return x == 77777; }));
    EXPECT_TRUE(std::all_of(field.begin() + 2 * length, field.end(), [](int32_t x) { return x == 77777; }));
    return std::vector<int32_t>(field.begin() + length, field.begin() + 2 * length);
  };
  found = {cut(batch.tokens), cut(batch.targets), cut(batch.positions), cut(batch.key_begin)};
  EXPECT_EQ(batch.supervised, found.supervised());
  return found;
}

void expect_rows(const Dataset& data, const std::vector<NaiveRow>& expected) {
  ASSERT_EQ(data.rows(), static_cast<int64_t>(expected.size()));
  for (int64_t i = 0; i < data.rows(); ++i) {
    const NaiveRow row = read_row(data, i);
    ASSERT_EQ(row.tokens, expected[i].tokens) << i;
    ASSERT_EQ(row.targets, expected[i].targets) << i;
    ASSERT_EQ(row.positions, expected[i].positions) << i;
    ASSERT_EQ(row.key_begin, expected[i].key_begin) << i;
    ASSERT_GT(row.supervised(), 0) << i;
  }
}

class Rows : public DataTest {};

TEST_F(Rows, EqualTheNaivePacking) {
  std::mt19937 random(11);
  for (const int64_t length : {2, 3, 7, 64, 1000}) {
    for (const int longest : {1, 2, 9, 300}) {
      const auto documents = random_documents(random, 700, longest);
      const auto store = store_of(folder_ / "store", documents);
      expect_rows(TokenDataset(store, length, true), naive_packed(documents, length));
      expect_rows(TokenDataset(store, length, false), naive_unpacked(documents, length));
    }
  }
}

TEST_F(Rows, OfAPartOfTheDocumentsEqualTheNaivePackingOfThatPart) {
  std::mt19937 random(12);
  const auto documents = random_documents(random, 3000, 40);
  const auto store = store_of(folder_ / "store", documents);
  for (const auto part : {DocumentSplit::Part::training, DocumentSplit::Part::validation}) {
    for (const double fraction : {0.02, 0.5, 0.97}) {
      const DocumentSplit split{part, fraction};
      std::vector<std::vector<int32_t>> taken;
      for (size_t i = 0; i < documents.size(); ++i)
        if (split.takes(static_cast<int64_t>(i))) taken.push_back(documents[i]);
      expect_rows(TokenDataset(store, 50, true, split), naive_packed(taken, 50));
      expect_rows(TokenDataset(store, 20, false, split), naive_unpacked(taken, 20));
    }
  }
}

TEST_F(Rows, TheSplitIsAPartitionOfTheRightSize) {
  constexpr int64_t kCount = 100'000;
  for (const double fraction : {0.02, 0.1, 0.5}) {
    int64_t held_out = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const bool train = DocumentSplit{DocumentSplit::Part::training, fraction}.takes(i);
      const bool validation = DocumentSplit{DocumentSplit::Part::validation, fraction}.takes(i);
      ASSERT_NE(train, validation);
      held_out += validation;
    }
    EXPECT_NEAR(static_cast<double>(held_out), fraction * kCount, 5 * std::sqrt(kCount * fraction * (1 - fraction)));
  }
}

// Case 3 of the fault list at this level: a row without a target is dropped and counted.
TEST_F(Rows, WhatIsLeftOverIsDroppedAndCounted) {
  // 3 + 1 + 4 + 1 = 9 tokens: at length 4 the third row would hold one end-of-sequence token only.
  const std::vector<std::vector<int32_t>> documents = {{10, 11, 12}, {13, 14, 15, 16}};
  const auto store = store_of(folder_ / "store", documents);
  const TokenDataset packed(store, 4, true);
  EXPECT_EQ(packed.rows(), 2);
  EXPECT_EQ(packed.counts().dropped_rows, 1);
  EXPECT_EQ(packed.counts().tokens, 9);
  EXPECT_EQ(packed.counts().documents, 2);
  EXPECT_EQ(packed.counts().padding, 0);
  const TokenDataset five(store, 5, true);
  EXPECT_EQ(five.counts().dropped_rows, 0);
  EXPECT_EQ(five.counts().padding, 1);
  const TokenDataset apart(store, 3, false);
  EXPECT_EQ(apart.rows(), 3);
  EXPECT_EQ(apart.counts().cut_documents, 1);
  EXPECT_EQ(apart.counts().padding, 2);
}

// Sparse files: 5 * 10^9 tokens of which only the first and last documents hold anything, so that places, rows and
// offsets beyond 2^32 are really computed and read.
TEST_F(Rows, BeyondTwoToThe32Tokens) {
  const std::filesystem::path base = folder_ / "huge";
  constexpr int64_t kFiller = 1'000'000'000;
  constexpr int64_t kLength = 1000;
  const std::vector<int64_t> ends = {5,           kFiller,     2 * kFiller,       3 * kFiller,
                                     4 * kFiller, 5 * kFiller, 5 * kFiller + 1500};
  // A store of the same documents, each cut short, gives the layout of the index; then the ends are put in.
  store_of(base, std::vector<std::vector<int32_t>>(ends.size(), {7}));
  std::string index = read_file(base.string() + ".index");
  for (size_t i = 0; i < ends.size(); ++i) std::memcpy(index.data() + 32 + 8 * i, &ends[i], 8);
  const std::string hash = hash_hex(index.data(), index.size() - 32);
  index.replace(index.size() - 32, 32, hash);
  put("huge.index", index);
  std::filesystem::resize_file(base.string() + ".tokens", static_cast<uintmax_t>(ends.back()) * 2);
  const auto write_at = [&](int64_t token, uint16_t id) {
    std::fstream file(base.string() + ".tokens", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(token * 2);
    file.write(reinterpret_cast<const char*>(&id), 2);
  };
  for (int64_t i = 0; i < 1500; ++i) write_at(5 * kFiller + i, static_cast<uint16_t>(i == 1499 ? kEos : 2 + i % 900));
  write_at(5 * kFiller - 1, kEos);
  write_at(5 * kFiller - 2, 555);
  write_at((int64_t{1} << 32) + 3, 444);

  const auto store = std::make_shared<const TokenStore>(base);
  EXPECT_EQ(store->tokens(), ends.back());
  const TokenDataset data(store, kLength, true);
  ASSERT_EQ(data.rows(), 5'000'002);
  const NaiveRow middle = read_row(data, (int64_t{1} << 32) / kLength);
  const int64_t inside = ((int64_t{1} << 32) + 3) % kLength;
  EXPECT_EQ(middle.tokens[inside], 444);
  EXPECT_EQ(middle.targets[inside - 1], 444);
  EXPECT_EQ(middle.tokens[inside + 1], 0);
  const NaiveRow last_filler = read_row(data, 4'999'999);
  EXPECT_EQ(last_filler.tokens[kLength - 2], 555);
  EXPECT_EQ(last_filler.targets[kLength - 2], kEos);
  EXPECT_EQ(last_filler.targets[kLength - 1], Batch::kIgnore);
  const NaiveRow first = read_row(data, 5'000'000), second = read_row(data, 5'000'001);
  for (int64_t i = 0; i < kLength; ++i) {
    EXPECT_EQ(first.tokens[i], 2 + i % 900);
    EXPECT_EQ(first.targets[i], 2 + (i + 1) % 900);
    EXPECT_EQ(first.positions[i], i);
  }
  EXPECT_EQ(second.tokens[499], kEos);
  EXPECT_EQ(second.targets[498], kEos);
  EXPECT_EQ(second.targets[499], Batch::kIgnore);
  EXPECT_EQ(second.key_begin[500], 500);

  // More than 2^31 rows.
  const TokenDataset narrow(store, 2, true);
  EXPECT_EQ(narrow.rows(), ends.back() / 2);
  EXPECT_EQ(read_row(narrow, ((int64_t{1} << 32) + 2) / 2).targets[0], 444);
  EXPECT_EQ(read_row(narrow, narrow.rows() - 2).tokens, std::vector<int32_t>({2 + 1496 % 900, 2 + 1497 % 900}));
  const TokenDataset apart(store, kLength, false);
  EXPECT_EQ(read_row(apart, apart.rows() - 1).targets[498], kEos);
}

}  // namespace
}  // namespace yoke
