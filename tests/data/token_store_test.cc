#include "data/token_store.h"

#include <cstring>

#include "data_test_util.h"

namespace yoke {
namespace {

class Stores : public DataTest {};

TEST_F(Stores, KeepDocumentsInTwoOrFourBytes) {
  for (const int64_t vocabulary : {65536, 65537}) {
    const auto last = static_cast<int32_t>(vocabulary - 1);
    const std::vector<std::vector<int32_t>> documents = {{2, last, 3}, {last}, {5, 6}};
    const auto store = store_of(folder_ / "store", documents, vocabulary);
    EXPECT_EQ(std::filesystem::file_size(folder_ / "store.tokens"), 9u * (vocabulary == 65536 ? 2 : 4));
    ASSERT_EQ(store->documents(), 3);
    EXPECT_EQ(store->tokens(), 9);
    for (int64_t i = 0; i < 3; ++i) {
      std::vector<int32_t> ids(static_cast<size_t>(store->length(i)));
      store->read(store->begin(i), ids);
      std::vector<int32_t> expected = documents[static_cast<size_t>(i)];
      expected.push_back(1);
      EXPECT_EQ(ids, expected);
    }
  }
}

TEST_F(Stores, AnEndThatEndsNothingIsLeftOut) {
  TokenStoreWriter writer(folder_ / "store", 100, 1);
  writer.append(std::vector<int32_t>{1, 1, 5});
  writer.append(std::vector<int32_t>{6, 1});
  writer.append(std::vector<int32_t>{1, 7, 1});
  CorpusCounts counts;
  counts.files = 3;
  counts.empty_files = 4;
  counts.empty_documents = 5;
  counts.crlf_files = 6;
  writer.commit(counts);
  const TokenStore store(folder_ / "store");
  EXPECT_EQ(store.documents(), 2);
  EXPECT_EQ(store.end(0), 3);
  EXPECT_EQ(store.end(1), 5);
  EXPECT_EQ(store.counts().files, 3);
  EXPECT_EQ(store.counts().crlf_files, 6);
}

TEST_F(Stores, ADamagedByteOrACutIsNoticed) {
  std::mt19937 random(1);
  store_of(folder_ / "store", random_documents(random, 6, 30));
  const std::filesystem::path index = folder_ / "store.index", tokens = folder_ / "store.tokens";
  const std::string good = read_file(index), good_tokens = read_file(tokens);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    put("store.index", bad);
    error_of([&] { TokenStore store(folder_ / "store"); });
    put("store.index", good.substr(0, i));
    error_of([&] { TokenStore store(folder_ / "store"); });
  }
  put("store.index", good);
  EXPECT_NO_THROW(TokenStore(folder_ / "store"));
  put("store.tokens", good_tokens.substr(0, good_tokens.size() - 2));
  EXPECT_TRUE(holds(error_of([&] { TokenStore store(folder_ / "store"); }), "bytes long"));
  std::filesystem::remove(tokens);
  EXPECT_TRUE(holds(error_of([&] { TokenStore store(folder_ / "store"); }), tokens.string()));
}

TEST_F(Stores, AnIdBeyondTheVocabularyNeverReachesAModel) {
  store_of(folder_ / "store", {{2, 3, 4}});
  std::string tokens = read_file(folder_ / "store.tokens");
  const uint16_t bad = 1000;
  std::memcpy(tokens.data() + 2, &bad, 2);
  put("store.tokens", tokens);
  const TokenStore store(folder_ / "store");
  std::vector<int32_t> ids(4);
  EXPECT_TRUE(holds(error_of([&] { store.read(0, ids); }), "holds the id 1000"));
}

}  // namespace
}  // namespace yoke
