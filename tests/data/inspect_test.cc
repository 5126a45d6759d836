#include "data/inspect.h"

#include "data_test_util.h"

namespace yoke {
namespace {

class Inspect : public DataTest {
 protected:
  Datasets open(int64_t length, bool packing = true, double validation = 0.0) const {
    DataOptions options;
    options.train = {(folder_ / "a.jsonl").string()};
    options.format = Format::jsonl;
    options.cache = folder_ / "cache";
    options.sequence_length = length;
    options.packing = packing;
    options.validation = validation;
    return open_datasets(options, ByteIds());
  }
};

TEST_F(Inspect, ShowsDocumentsPositionsAndWhatIsSupervised) {
  put("a.jsonl", "{\"text\": \"abcd\"}\n{\"text\": \"xyz\"}\n");
  const Datasets data = open(12);
  // abcd<|end|>xyz<|end|> and three positions of padding. The first token of a document is predicted by nothing.
  EXPECT_EQ(describe_row(*data.train, 0, ByteIds(), false),
            "row 0: 12 tokens, 7 supervised\n"
            "-- tokens 0 to 4, positions 0 to 4, 4 supervised\n⟦a⟧bcd<|end|>\n"
            "-- tokens 5 to 8, positions 0 to 3, 3 supervised\n⟦x⟧yz<|end|>\n"
            "-- tokens 9 to 11: padding\n");
  EXPECT_TRUE(holds(describe_row(*data.train, 0, ByteIds(), true), "x\x1b[32myz<|end|>\x1b[0m\n"));
}

TEST_F(Inspect, ControlCharactersDoNotReachTheTerminal) {
  put("a.jsonl", "{\"text\": \"a\\u001b[2J\\tb\"}\n");
  const std::string shown = describe_row(*open(16).train, 0, ByteIds(), false);
  EXPECT_TRUE(holds(shown, "⟦a⟧\\x1b[2J\tb"));
}

TEST_F(Inspect, CountsWhatWasLeftOut) {
  put("a.jsonl", "{\"text\": \"abcdefgh\"}\n{\"text\": \"\"}\n{\"text\": \"xyz\"}\n");
  const std::string apart = describe(open(5, false));
  EXPECT_TRUE(holds(apart, "documents   2; 1 more without a token were dropped"));
  EXPECT_TRUE(holds(apart, "tokens      13,"));
  EXPECT_TRUE(holds(apart, "shortest 4, mean 6.5, longest 9 tokens"));
  EXPECT_TRUE(holds(apart, "training    3 rows of 5 tokens, from 2 documents of 13 tokens"));
  EXPECT_TRUE(holds(apart, "1 documents cut into several rows"));
  EXPECT_TRUE(holds(apart, "4 positions of padding (26.67 %)"));
  EXPECT_TRUE(holds(apart, "validation  none"));
  EXPECT_TRUE(holds(describe(open(4)), "1 rows dropped (no supervised token); 0 positions"));
  EXPECT_TRUE(holds(describe(open(4, true, 0.4)), "validation  1 rows of 4 tokens (rows 2 to 2 of 3)"));
}

}  // namespace
}  // namespace yoke
