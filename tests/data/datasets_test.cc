#include "data/datasets.h"

#include <cmath>
#include <set>

#include "data_test_util.h"

namespace yoke {
namespace {

class DatasetsTest : public DataTest {
 protected:
  DataOptions options(const std::vector<std::string>& train) const {
    DataOptions options;
    for (const std::string& name : train) options.train.push_back((folder_ / name).string());
    options.cache = folder_ / "cache";
    options.sequence_length = 8;
    return options;
  }
  std::string many_lines(int count, const std::string& tag) const {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += fmt::format("{{\"text\": \"{}{} and so on\"}}\n", tag, i);
    return lines;
  }
  /// The text of every document that the rows of a data set hold.
  static std::multiset<std::string> documents_in(const TokenDataset& data) {
    std::multiset<std::string> found;
    std::string text;
    for (int64_t r = 0; r < data.rows(); ++r) {
      Batch batch = empty_batch(1, data.sequence_length());
      data.read(r, batch, 0);
      for (const int32_t id : batch.tokens) {
        if (id == 256 && !text.empty()) found.insert(text);
        id == 256 ? text.clear() : text.push_back(static_cast<char>(id));
      }
    }
    if (!text.empty()) found.insert(text);
    return found;
  }
};

TEST_F(DatasetsTest, AFractionOfManyDocumentsIsHeldOut) {
  put("a.jsonl", many_lines(1000, "a"));
  DataOptions data = options({"a.jsonl"});
  data.format = Format::jsonl;
  data.validation = 0.1;
  const Datasets sets = open_datasets(data, ByteIds());
  const auto train = documents_in(*sets.train), validation = documents_in(*sets.validation);
  EXPECT_EQ(train.size() + validation.size(), 1000u);
  EXPECT_NEAR(static_cast<double>(validation.size()), 100, 50);
  for (const std::string& text : validation) EXPECT_EQ(train.count(text), 0u) << text;

  // Neither another seed nor more files behind it move a document to the other side.
  data.seed = 99;
  EXPECT_EQ(documents_in(*open_datasets(data, ByteIds()).validation), validation);
  put("b.jsonl", many_lines(500, "b"));
  data.train.push_back((folder_ / "b.jsonl").string());
  auto more = documents_in(*open_datasets(data, ByteIds()).validation);
  EXPECT_GT(more.size(), validation.size());
  std::erase_if(more, [](const std::string& text) { return text[0] == 'b'; });
  EXPECT_EQ(more, validation);
}

TEST_F(DatasetsTest, OfOneLongTextTheLastRowsAreHeldOut) {
  std::string text;
  for (int i = 0; text.size() < 8000; ++i) text += "line " + std::to_string(i) + "\n";
  put("long.txt", text);
  DataOptions data = options({"long.txt"});
  data.validation = 0.02;
  const Datasets sets = open_datasets(data, ByteIds());
  EXPECT_EQ(sets.validation->rows(), 20);
  std::string joined;
  for (const TokenDataset* part : {sets.train.get(), sets.validation.get()}) {
    for (int64_t r = 0; r < part->rows(); ++r) {
      Batch batch = empty_batch(1, 8);
      part->read(r, batch, 0);
      for (const int32_t id : batch.tokens)
        if (id < 256) joined += static_cast<char>(id);
    }
  }
  EXPECT_EQ(joined, text) << "training's rows, then validation's, are the text: nothing is lost or in both";
}

TEST_F(DatasetsTest, ValidationFilesOfTheirOwn) {
  put("a.txt", "training text of some length");
  put("v.txt", "validation text");
  DataOptions data = options({"a.txt"});
  data.validation = std::vector<std::string>{(folder_ / "v.txt").string()};
  const Datasets sets = open_datasets(data, ByteIds());
  EXPECT_EQ(documents_in(*sets.train), std::multiset<std::string>({"training text of some length"}));
  EXPECT_EQ(documents_in(*sets.validation), std::multiset<std::string>({"validation text"}));
  data.train.push_back((folder_ / "*.txt").string());
  EXPECT_TRUE(
      holds(error_of([&] { open_datasets(data, ByteIds()); }), "v.txt is in data.train and in data.validation"));
}

TEST_F(DatasetsTest, NothingHeldOutNothingMade) {
  put("a.txt", "some text");
  EXPECT_FALSE(open_datasets(options({"a.txt"}), ByteIds()).validation);
}

// Case 3: when nothing is left the limit is named.
TEST_F(DatasetsTest, WhereNoRowIsLeftTheLimitIsNamed) {
  put("tiny.txt", "abc");
  DataOptions data = options({"tiny.txt"});
  data.sequence_length = 1024;
  EXPECT_EQ(open_datasets(data, ByteIds()).train->rows(), 1) << "a corpus shorter than a row is one padded row";
  data.validation = 0.1;
  const std::string message = error_of([&] { open_datasets(data, ByteIds()); });
  EXPECT_TRUE(holds(message, "no row is left for training"));
  EXPECT_TRUE(holds(message, "data.sequence_length is 1024"));
  data.sequence_length = 2;
  EXPECT_EQ(open_datasets(data, ByteIds()).validation->rows(), 1);
}

TEST_F(DatasetsTest, TheFingerprintFollowsWhatDecidesTheRows) {
  put("a.txt", "some text that is long enough");
  const DataOptions data = options({"a.txt"});
  const std::string base = open_datasets(data, ByteIds()).fingerprint;
  EXPECT_EQ(open_datasets(data, ByteIds()).fingerprint, base);
  std::set<std::string> seen = {base};
  DataOptions other = data;
  other.sequence_length = 9;
  EXPECT_TRUE(seen.insert(open_datasets(other, ByteIds()).fingerprint).second);
  other = data;
  other.packing = false;
  EXPECT_TRUE(seen.insert(open_datasets(other, ByteIds()).fingerprint).second);
  other = data;
  other.validation = 0.3;
  EXPECT_TRUE(seen.insert(open_datasets(other, ByteIds()).fingerprint).second);
  EXPECT_TRUE(seen.insert(open_datasets(data, PairTokenizer()).fingerprint).second);
  other = data;
  other.threads = 3;
  EXPECT_EQ(open_datasets(other, ByteIds()).fingerprint, base);
}

TEST_F(DatasetsTest, OptionsOutOfRangeAreNamed) {
  put("a.txt", "some text");
  const auto message = [&](const auto& change) {
    DataOptions data = options({"a.txt"});
    change(data);
    return error_of([&] { open_datasets(data, ByteIds()); });
  };
  EXPECT_TRUE(holds(message([](DataOptions& d) { d.train.clear(); }), "data.train"));
  EXPECT_TRUE(holds(message([](DataOptions& d) { d.sequence_length = 1; }), "data.sequence_length is 1"));
  EXPECT_TRUE(holds(message([](DataOptions& d) { d.sequence_length = int64_t{1} << 40; }), "data.sequence_length"));
  EXPECT_TRUE(holds(message([](DataOptions& d) { d.threads = 0; }), "threads"));
  EXPECT_TRUE(holds(message([](DataOptions& d) { d.validation = 1.0; }), "data.validation is 1"));
  EXPECT_TRUE(holds(message([](DataOptions& d) { d.validation = std::nan(""); }), "data.validation is nan"));
  EXPECT_TRUE(holds(message([](DataOptions& d) { d.validation = std::vector<std::string>{}; }), "data.validation"));
  EXPECT_TRUE(holds(error_of([] { parse_format("jsnol"); }), "Did you mean 'jsonl'?"));
}

}  // namespace
}  // namespace yoke
