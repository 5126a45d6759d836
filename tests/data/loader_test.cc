#include "data/loader.h"

#include <map>
#include <set>

#include "data/permutation.h"
#include "data_test_util.h"

namespace yoke {
namespace {

/// Row i holds {i, i + 1}, so that a batch tells which rows it is made of.
class CountingRows : public Dataset {
 public:
  explicit CountingRows(int64_t rows, int64_t faulty = -1) : rows_(rows), faulty_(faulty) {}
  int64_t rows() const override { return rows_; }
  int64_t sequence_length() const override { return 2; }
  void read(int64_t row, Batch& batch, int64_t at) const override {
    if (row == faulty_) fail_file("row {} is damaged", row);
    for (int32_t i = 0; i < 2; ++i) {
      batch.tokens[at * 2 + i] = static_cast<int32_t>(row) + i;
      batch.targets[at * 2 + i] = static_cast<int32_t>(row) + i + 1;
    }
    batch.supervised += 2;
  }

 private:
  int64_t rows_, faulty_;
};

std::vector<int32_t> rows_of(const StepData& step) {
  std::vector<int32_t> rows;
  for (const Batch& batch : step.batches)
    for (int64_t r = 0; r < batch.rows; ++r)
      if (batch.targets[r * 2] != Batch::kIgnore) rows.push_back(batch.tokens[r * 2]);
  return rows;
}

/// All rows of a run over every rank, step by step.
std::vector<std::vector<int32_t>> steps_of(const Dataset& data, LoaderOptions options, int ranks, int64_t steps) {
  std::vector<std::vector<int32_t>> all(steps);
  options.ranks = ranks;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    Loader loader(data, options);
    for (int64_t s = 0; s < steps; ++s) {
      const auto step = loader.next();
      if (!step) break;
      const auto rows = rows_of(*step);
      EXPECT_EQ(step->supervised, static_cast<int64_t>(rows.size()) * 2);
      all[s].insert(all[s].end(), rows.begin(), rows.end());
    }
  }
  return all;
}

TEST(LoaderTest, ShuffledEpochsAreThePermutationOfEachEpoch) {
  const CountingRows data(37);
  Loader loader(data, {.micro_batch = 3, .global_batch = 10, .seed = 5});
  std::vector<int32_t> stream;
  for (int s = 0; s < 11; ++s) {
    const auto step = loader.next();
    ASSERT_TRUE(step);
    EXPECT_EQ(step->rows, 10);
    EXPECT_FALSE(step->partial) << "a run without a limit streams over the ends of epochs";
    const auto rows = rows_of(*step);
    stream.insert(stream.end(), rows.begin(), rows.end());
  }
  ASSERT_EQ(stream.size(), 110u);
  for (size_t i = 0; i < stream.size(); ++i) EXPECT_EQ(stream[i], Permutation(37, 5, i / 37)(i % 37)) << i;
  const std::set<int32_t> epoch(stream.begin() + 37, stream.begin() + 74);
  EXPECT_EQ(epoch.size(), 37u);
}

TEST(LoaderTest, TheUnionOverRanksDoesNotDependOnTheirNumber) {
  for (const int64_t micro : {1, 2, 3, 100}) {
    for (const int64_t limit : {int64_t{0}, int64_t{101}}) {
      const CountingRows data(43);
      const LoaderOptions options{.micro_batch = micro, .global_batch = 12, .seed = 8, .limit = limit};
      const auto expected = steps_of(data, options, 1, 10);
      for (const int ranks : {2, 3, 4, 5, 7, 12, 20}) EXPECT_EQ(steps_of(data, options, ranks, 10), expected) << ranks;
    }
  }
}

// Unequal shares never hang: every rank has as many micro-batches as any other, none of them empty.
TEST(LoaderTest, RanksHaveEquallyManyMicroBatches) {
  const CountingRows data(10);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int64_t micro : {1, 2, 4}) {
      std::set<std::vector<size_t>> shapes;
      for (int rank = 0; rank < ranks; ++rank) {
        Loader loader(data, {.micro_batch = micro, .global_batch = 8, .rank = rank, .ranks = ranks, .limit = 13});
        std::vector<size_t> shape;
        while (const auto step = loader.next()) {
          shape.push_back(step->batches.size());
          for (const Batch& batch : step->batches) {
            EXPECT_GE(batch.rows, 1);
            EXPECT_LE(batch.rows, micro);
          }
        }
        shapes.insert(shape);
      }
      EXPECT_EQ(shapes.size(), 1u) << ranks << " ranks, micro-batch " << micro;
    }
  }
}

// Case 2 of the fault list: six rows at four a step end in a step of two that says so.
TEST(LoaderTest, TheLastStepBeforeTheLimitIsPartial) {
  const CountingRows data(6);
  Loader loader(data, {.micro_batch = 1, .global_batch = 4, .limit = 6});
  EXPECT_EQ(loader.steps(), 2);
  const auto first = loader.next(), last = loader.next();
  ASSERT_TRUE(first && last);
  EXPECT_EQ(first->rows, 4);
  EXPECT_FALSE(first->partial);
  EXPECT_EQ(last->rows, 2);
  EXPECT_TRUE(last->partial);
  EXPECT_EQ(last->batches.size(), 2u);
  EXPECT_EQ(last->supervised, 4);
  EXPECT_FALSE(loader.next());
  EXPECT_FALSE(loader.next()) << "the end stays the end";
  EXPECT_EQ(loader.state(), (LoaderState{1, 0}));

  Loader two_epochs(data, {.micro_batch = 1, .global_batch = 4, .limit = 12});
  EXPECT_EQ(two_epochs.steps(), 3);
  while (const auto step = two_epochs.next()) EXPECT_FALSE(step->partial);
}

void expect_same(const StepData& a, const StepData& b) {
  ASSERT_EQ(a.batches.size(), b.batches.size());
  EXPECT_EQ(a.after, b.after);
  for (size_t i = 0; i < a.batches.size(); ++i) {
    EXPECT_EQ(a.batches[i].tokens, b.batches[i].tokens);
    EXPECT_EQ(a.batches[i].targets, b.batches[i].targets);
    EXPECT_EQ(a.batches[i].positions, b.batches[i].positions);
    EXPECT_EQ(a.batches[i].key_begin, b.batches[i].key_begin);
  }
}

class LoaderFiles : public DataTest {};

// Case 19: stopping anywhere, inside an epoch or on its end, and going on equals not having stopped.
TEST_F(LoaderFiles, ResumingAnywhereEqualsAStraightRun) {
  std::mt19937 random(3);
  const auto store = store_of(folder_ / "store", random_documents(random, 200, 50));
  const TokenDataset data(store, 32, true);
  const int64_t per_epoch = data.rows();
  const LoaderOptions options{.micro_batch = 2, .global_batch = 8, .rank = 1, .ranks = 2, .seed = 6};
  const int64_t steps = 3 * per_epoch / 8 + 2;
  std::vector<StepData> straight;
  std::vector<LoaderState> states;
  Loader loader(data, options);
  for (int64_t s = 0; s < steps; ++s) {
    states.push_back(loader.state());
    straight.push_back(*loader.next());
    EXPECT_EQ(loader.state(), straight.back().after);
  }
  EXPECT_EQ(states[5], (LoaderState{0, 40}));
  for (int64_t s = 0; s < steps; ++s) {
    Loader fresh(data, options);
    fresh.restore(states[s]);
    expect_same(*fresh.next(), straight[s]);
    if (s + 1 < steps) expect_same(*fresh.next(), straight[s + 1]);
  }
  loader.restore(states[1]);  // backwards, while it is reading ahead
  expect_same(*loader.next(), straight[1]);

  // Another number of ranks goes on with the same global rows.
  Loader one(data, {.micro_batch = 8, .global_batch = 8, .seed = 6});
  one.restore(states[7]);
  const auto step = one.next();
  const Batch& mine = straight[7].batches[0];
  EXPECT_TRUE(std::equal(mine.tokens.begin(), mine.tokens.end(), step->batches[0].tokens.begin() + 4 * 32));
}

TEST(LoaderTest, APlaceThatTheDataLacksIsRefused) {
  const CountingRows data(10);
  Loader loader(data, {.global_batch = 3});
  for (const LoaderState state : {LoaderState{0, 10}, LoaderState{0, -1}, LoaderState{-1, 0}})
    EXPECT_TRUE(holds(error_of([&] { loader.restore(state); }), "the data set has 10 rows"));
  EXPECT_TRUE(loader.next());
}

TEST(LoaderTest, FaultsComeInTheirPlaceAndStay) {
  const CountingRows data(10, 7);
  Loader loader(data, {.global_batch = 3, .shuffle = false});
  EXPECT_EQ(rows_of(*loader.next()), std::vector<int32_t>({0, 1, 2}));
  EXPECT_EQ(rows_of(*loader.next()), std::vector<int32_t>({3, 4, 5}));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(holds(error_of([&] { loader.next(); }), "row 7 is damaged"));
}

// Case 14: every rank reads other samples, and the hashes show it.
TEST(LoaderTest, HashesOfTheNextSamplesDifferBetweenRanks) {
  const CountingRows data(100);
  std::set<std::string> hashes;
  for (int rank = 0; rank < 4; ++rank) {
    Loader loader(data, {.micro_batch = 2, .global_batch = 16, .rank = rank, .ranks = 4});
    const std::string hash = loader.next_samples_hash();
    EXPECT_EQ(hash, loader.next_samples_hash());
    hashes.insert(hash);
    loader.next();
    EXPECT_NE(hash, loader.next_samples_hash());
    loader.restore({});
    EXPECT_EQ(hash, loader.next_samples_hash());
  }
  EXPECT_EQ(hashes.size(), 4u);
}

// Of a last step of 2 rows over 4 ranks, two ranks have nothing but padding, which is no sample.
TEST(LoaderTest, PaddingHasNoHash) {
  const CountingRows data(18);
  std::set<std::string> hashes;
  for (int rank = 0; rank < 4; ++rank) {
    Loader loader(data, {.micro_batch = 2, .global_batch = 16, .rank = rank, .ranks = 4, .limit = 18});
    loader.next();
    hashes.insert(loader.next_samples_hash());
    loader.next();
    EXPECT_EQ(loader.next_samples_hash(), "");
  }
  EXPECT_EQ(hashes.size(), 3u);
  EXPECT_TRUE(hashes.contains(""));
}

TEST(LoaderTest, MoreRowsThan32BitsCanCount) {
  const int64_t rows = (int64_t{1} << 33) + 5;
  const CountingRows data(rows);  // its tokens are the rows' lower 32 bits
  Loader loader(data, {.micro_batch = 4, .global_batch = 4, .seed = 2});
  loader.restore({6, rows - 2});
  const auto step = loader.next();
  EXPECT_EQ(step->after, (LoaderState{7, 2}));
  const auto row = [&](uint64_t epoch, uint64_t i) { return static_cast<int32_t>(Permutation(rows, 2, epoch)(i)); };
  EXPECT_EQ(rows_of(*step), std::vector<int32_t>({row(6, rows - 2), row(6, rows - 1), row(7, 0), row(7, 1)}));
}

TEST(LoaderTest, OptionsOutOfRangeAreUsageErrors) {
  const CountingRows data(10);
  EXPECT_TRUE(holds(error_of([&] { Loader(data, {.micro_batch = 0}); }), "train.micro_batch is 0"));
  EXPECT_TRUE(holds(error_of([&] { Loader(data, {.global_batch = -1}); }), "train.global_batch is -1"));
  EXPECT_TRUE(holds(error_of([&] { Loader(data, {.limit = -1}); }), "must not be negative"));
}

}  // namespace
}  // namespace yoke
