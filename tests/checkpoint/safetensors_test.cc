#include "checkpoint/safetensors.h"

#include <cstring>

#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

using test::error_of;
using test::Scratch;

std::string with_length(uint64_t length, const std::string& header, const std::string& data = "") {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

std::string file_of(const std::string& header, const std::string& data = "") {
  return with_length(header.size(), header, data);
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, int begin, int end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

SafetensorsHeader parse(const std::string& file) { return parse_safetensors(file, file.size(), "x.safetensors"); }

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const std::string data(21, 'd');
  const std::string header = R"({"__metadata__":{"format":"pt","":"e"},)" + tensor("b", "F32", "[2,2]", 3, 19) + "," +
                             tensor("a", "U8", "[3]", 0, 3) + "," + tensor("empty", "BF16", "[0,7]", 3, 3) + "," +
                             tensor("scalar", "F16", "[]", 19, 21) + "}   ";
  const SafetensorsHeader parsed = parse(file_of(header, data));
  ASSERT_EQ(parsed.tensors.size(), 4u);
  EXPECT_EQ(parsed.tensors[0].name, "a");
  EXPECT_EQ(parsed.tensors[1].name, "empty");
  EXPECT_EQ(parsed.tensors[2].name, "b");
  EXPECT_EQ(parsed.tensors[2].str(), "F32 [2, 2]");
  EXPECT_EQ(parsed.tensors[3].elements(), 1);
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
  EXPECT_EQ(parsed.data_begin, 8 + header.size());
  EXPECT_TRUE(parse(file_of("{}")).tensors.empty());
}

TEST(Safetensors, NamesEveryFault) {
  const std::string good = tensor("a", "F32", "[1]", 0, 4);
  const struct {
    std::string file;
    const char* message;
  } cases[] = {
      {"", "too short"},
      {"1234567", "too short"},
      {with_length(100'000'001, "{}"), "at most 100000000"},
      {with_length(UINT64_MAX, "{}"), "at most 100000000"},
      {with_length(3, "{}"), "only 2 follow"},
      {file_of(""), "doesn't begin with '{'"},
      {file_of(" {}"), "doesn't begin with '{'"},
      {file_of("[]"), "doesn't begin with '{'"},
      {file_of("{} x"), "not valid JSON"},
      {file_of("{\"a\":"), "not valid JSON"},
      {file_of("{\"\xff\":{}}"), "not valid JSON"},
      {file_of("{\"a\":1}"), "tensor 'a': is 1; legal is an object"},
      {file_of("{\"a\":null}"), "is null"},
      {file_of("{\"a\":{}}"), "lacks dtype"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1]}})"), "lacks data_offsets"},
      {file_of(R"({"a":{"dtype":"F32","data_offsets":[0,0]}})"), "lacks shape"},
      {file_of(R"({"a":{"dtype":"F33"}})"), "dtype is 'F33'; legal are F32, BF16"},
      {file_of(R"({"a":{"dtype":7}})"), "dtype is 7; legal is a string"},
      {file_of(R"({"a":{"dtype":"F32","dtype":"F32"}})"), "appears twice"},
      {file_of(R"({"a":{"strides":[1]}})"), "has the field 'strides'"},
      {file_of(R"({"a":{"shape":"x"}})"), "shape is a string"},
      {file_of(R"({"a":{"shape":[-1]}})"), "shape holds -1"},
      {file_of(R"({"a":{"shape":[1.5]}})"), "shape holds '1.5'"},
      {file_of(R"({"a":{"shape":[[1]]}})"), "a list"},
      {file_of(R"({"a":{"shape":[9223372036854775808]}})"), "9223372036854775808; legal are whole"},
      {file_of(R"({"a":{"shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}})"), "more than 16"},
      {file_of(R"({"a":{"data_offsets":[1]}})"), "legal are 2"},
      {file_of("{" + tensor("a", "F32", "[4294967296,4294967296]", 0, 4) + "}", "1234"), "more elements than"},
      {file_of("{" + tensor("a", "F32", "[2]", 0, 4) + "}", "1234"), "takes 8 bytes"},
      {file_of("{" + tensor("a", "F4", "[3]", 0, 1) + "}", "1"), "takes 1 bytes"},
      {file_of("{" + tensor("a", "F32", "[1]", 4, 0) + "}", "1234"), "data_offsets are 4 to 0"},
      {file_of("{" + good + "}", "123"), "ends at byte 4 of the data, but the file has only 3"},
      {file_of("{" + good + "}", "12345"), "bytes of no tensor"},
      {file_of("{" + tensor("a", "F32", "[1]", 1, 5) + "}", "12345"), "holes"},
      {file_of("{" + good + "," + tensor("b", "U8", "[2]", 3, 5) + "}", "12345"), "tensor 'b'"},
      {file_of("{" + good + "," + tensor("b", "U8", "[2]", 3, 5) + "}", "12345"), "overlaps"},
      {file_of("{" + good + "," + tensor("a", "U8", "[1]", 4, 5) + "}", "12345"), "tensor 'a' twice"},
      {file_of(R"({"__metadata__":{"a":1}})"), "'a' is 1; legal are strings"},
      {file_of(R"({"__metadata__":{"a":"b","a":"c"}})"), "appears twice"},
      {file_of("{\"a\":" + std::string(1'000'000, '[')), "legal is an object"},
      {file_of("{\"a\":" + std::string(1'000'000, '{')), "not valid JSON"},
  };
  for (const auto& [file, message] : cases) {
    const std::string error = error_of([&] { parse(file); });
    EXPECT_CONTAINS(error, message);
    EXPECT_CONTAINS(error, "x.safetensors");
    EXPECT_LT(error.size(), 600u);
  }
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string file = file_of("{" + tensor("a", "F32", "[1]", 0, 4) + "}", "1234");
  for (size_t n = 0; n < file.size(); ++n) error_of([&] { parse(file.substr(0, n)); });
  EXPECT_EQ(parse(file).tensors.size(), 1u);
}

TEST(Safetensors, WritesInPiecesAndReadsBackMisaligned) {
  const Scratch scratch;
  const std::vector<SafetensorsWriter::Item> items = {
      {"odd", DType::u8, {3}}, {"weights", DType::bf16, {2, 3}}, {"none", DType::f32, {0, 4}}, {"x", DType::f64, {}}};
  std::string data(3 + 12 + 8, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + 1);
  for (const size_t piece : {size_t{1}, size_t{5}, data.size()}) {
    SafetensorsWriter writer(scratch / "m.safetensors", items, {{"format", "pt"}});
    for (size_t i = 0; i < data.size(); i += piece) writer.write(data.data() + i, std::min(piece, data.size() - i));
    EXPECT_FALSE(piece == 1 && std::filesystem::exists(scratch / "m.safetensors"));
    const std::string hash = writer.commit();
    const std::string content = read_file(scratch / "m.safetensors");
    EXPECT_EQ(hash, hash_hex(content.data(), content.size()));
    EXPECT_EQ(content.size(), writer.file_bytes());
    const SafetensorsFile file(scratch / "m.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    const auto bytes = file.bytes(*file.find("weights"));
    EXPECT_EQ(std::memcmp(bytes.data(), data.data() + 3, 12), 0);
    EXPECT_EQ(file.find("none")->bytes(), 0u);
    EXPECT_EQ(file.find("absent"), nullptr);
    file.release(*file.find("weights"), 0, 12);
    EXPECT_EQ(std::memcmp(bytes.data(), data.data() + 3, 12), 0);
  }
}

TEST(Safetensors, AnUnfinishedFileLeavesNothing) {
  const Scratch scratch;
  { SafetensorsWriter writer(scratch / "m.safetensors", {{"a", DType::f32, {1}}}, {}); }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace yoke
