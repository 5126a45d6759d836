// Feeds mutated tokenizer files to the readers: whatever is in them, the end is a tokenizer that works or a UserError.
// Usage: tokenizer_fuzz [COUNT] [SEED]; the same inputs for the same arguments.
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/json_view.h"
#include "data/tokenizer/sentencepiece_check.h"
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/utf8.h"

namespace yoke {
namespace {

using Json = nlohmann::json;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return state_;
  }
  size_t below(size_t count) { return static_cast<size_t>(next() % count); }
  bool one_in(size_t count) { return below(count) == 0; }

 private:
  uint64_t state_;
};

/// A tokenizer.json with few tokens; `variant` chooses its parts.
Json small_tokenizer(int variant) {
  Json vocabulary;
  int id = 0;
  for (const char* token : {"a", "b", "c", "d", "e",     "t",  "h",   "1",    "2",  ".",  "Ġ",
                            "Ċ", "Ã", "©", "▁", "<unk>", "th", "the", "Ġthe", "ab", "12", "▁the"}) {
    vocabulary[token] = id++;
  }
  Json merges = {"t h", "th e", "Ġ the", "a b"};
  merges.push_back({"1", "2"});
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", variant % 2 == 0}, {"trim_offsets", true}, {"use_regex", true}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "\\p{N}{1,3}|\\s+(?!\\S)|[^\\s]+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  Json json = {{"version", "1.0"},
               {"added_tokens",
                {{{"id", 22},
                  {"content", "<a>"},
                  {"special", true},
                  {"normalized", false},
                  {"lstrip", false},
                  {"rstrip", true},
                  {"single_word", false}},
                 {{"id", 23},
                  {"content", "é d"},
                  {"special", false},
                  {"normalized", true},
                  {"lstrip", true},
                  {"rstrip", false},
                  {"single_word", true}}}},
               {"normalizer", nullptr},
               {"pre_tokenizer", byte_level},
               {"decoder", byte_level},
               {"model",
                {{"type", "BPE"},
                 {"unk_token", nullptr},
                 {"byte_fallback", false},
                 {"fuse_unk", true},
                 {"ignore_merges", variant % 3 == 0},
                 {"vocab", vocabulary},
                 {"merges", merges}}}};
  if (variant % 4 == 1) {
    json["normalizer"] = {{"type", "Sequence"},
                          {"normalizers",
                           {{{"type", "NFC"}},
                            {{"type", "Lowercase"}},
                            {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}}}};
    json["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", {split, {{"type", "Digits"}, {"individual_digits", true}}, byte_level}}};
  } else if (variant % 4 == 2) {
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, replace}}};
    json["pre_tokenizer"] = nullptr;
    json["decoder"] = {{"type", "Sequence"},
                       {"decoders",
                        {replace,
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
    json["model"]["unk_token"] = "<unk>";
  } else if (variant % 4 == 3) {
    json["pre_tokenizer"] = metaspace;
    json["decoder"] = metaspace;
  }
  return json;
}

Json small_tekken() {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  Json vocabulary = Json::array();
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const std::string base64 = {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    vocabulary.push_back({{"rank", byte}, {"token_bytes", base64}});
  }
  vocabulary.push_back({{"rank", 256}, {"token_bytes", "dGg="}});
  return {{"config", {{"pattern", "\\s+|\\S+"}, {"default_vocab_size", 260}, {"default_num_special_tokens", 3}}},
          {"vocab", vocabulary}};
}

/// A serialized SentencePiece model: a few pieces, a normaliser with a small table.
std::string small_sentencepiece() {
  std::string model;
  for (const std::string piece : {"<unk>", "<s>", "▁the", "a"}) {
    model += '\x0a';
    model += static_cast<char>(piece.size() + 2);
    model += '\x0a';
    model += static_cast<char>(piece.size()) + piece;
  }
  model += std::string("\x12\x02\x18\x02", 4);
  std::string table(4, '\0');
  table[0] = 0;
  table[1] = 4;  // 1024 bytes of trie
  table += std::string(1024, '\0') + std::string("x\0", 2);
  const size_t inside = table.size() + 3;
  model += '\x1a';
  model += static_cast<char>(0x80 | (inside & 0x7f));
  model += static_cast<char>(inside >> 7);
  model += '\x12';
  model += static_cast<char>(0x80 | (table.size() & 0x7f));
  model += static_cast<char>(table.size() >> 7);
  return model + table;
}

Json random_value(Random& random) {
  static const std::vector<std::string> kTexts = {"",
                                                  "a",
                                                  "the",
                                                  "▁",
                                                  "é",
                                                  "<a>",
                                                  "\\p{L}+",
                                                  "(?i:'s)|\\w+",
                                                  "[^\\r\\n\\p{L}]?\\p{N}{1,3}",
                                                  "(",
                                                  "\\p{",
                                                  "a*",
                                                  "(?<=a)b",
                                                  "x{99999}",
                                                  "\\x{110000}",
                                                  "[a-",
                                                  "(a|b)*c",
                                                  "\\g<0>",
                                                  "NFC",
                                                  "NFKD",
                                                  "BPE",
                                                  "Regex",
                                                  "String",
                                                  "Removed",
                                                  "Contiguous",
                                                  "MergedWithNext",
                                                  "Sequence",
                                                  "Split",
                                                  "ByteLevel",
                                                  "Metaspace",
                                                  "Whitespace",
                                                  "always",
                                                  "<0x41>",
                                                  "h e",
                                                  "a  b",
                                                  "\xcc\x81"};
  static const std::vector<Json> kValues = {
      nullptr,       true,          false, 0,         1,         -1,         22,  23,  24,
      255,           1000,          70000, INT32_MAX, INT64_MAX, UINT64_MAX, 0.0, 1.5, 1e300,
      Json::array(), Json::object()};
  return random.one_in(2) ? Json(kTexts[random.below(kTexts.size())]) : kValues[random.below(kValues.size())];
}

/// A node of the document, chosen by a random walk from its root.
Json& random_node(Json& json, Random& random) {
  Json* node = &json;
  while (node->is_structured() && !node->empty() && !random.one_in(5)) {
    auto member = node->begin();
    std::advance(member, random.below(node->size()));
    node = &*member;
  }
  return *node;
}

void mutate(Json& json, Random& random) {
  Json& node = random_node(json, random);
  switch (random.below(6)) {
    case 0:
      node = random_value(random);
      break;
    case 1:
      node = Json(random_node(json, random));  // a copy of another part
      break;
    case 2:
      if (node.is_array() && !node.empty()) node.erase(random.below(node.size()));
      break;
    case 3:
      if (node.is_array()) node.push_back(random_value(random));
      if (node.is_object()) node[random_value(random).dump().substr(0, 8)] = random_value(random);
      break;
    case 4:
      if (node.is_object() && !node.empty()) {
        auto member = node.begin();
        std::advance(member, random.below(node.size()));
        node.erase(member);
      }
      break;
    default:
      if (node.is_string()) node = node.get<std::string>() + random_value(random).dump();
      if (node.is_number_integer()) node = node.get<uint64_t>() + random.below(5) - 2;
  }
}

void mutate(std::string& bytes, Random& random) {
  if (bytes.empty()) return;
  const size_t at = random.below(bytes.size());
  switch (random.below(5)) {
    case 0:
      bytes[at] = static_cast<char>(random.next());
      break;
    case 1:
      bytes.resize(at);
      break;
    case 2:
      bytes.erase(at, 1 + random.below(8));
      break;
    case 3:
      bytes.insert(at, bytes.substr(random.below(bytes.size()), 1 + random.below(40)));
      break;
    default:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
  }
}

[[noreturn]] void broken(const char* what, const std::string& input) {
  std::fprintf(stderr, "%s with this input:\n%s\n", what, input.c_str());
  std::abort();
}

/// What every tokenizer must do with every text.
void use(const Tokenizer& tokenizer, const std::string& input) {
  for (const std::string_view text :
       {"", "the cat 12 <a>  é d. Ab\n", "\xff\xc3 e\xcc\x81 字 ▁ ☃\xed\xa0\x80 xx", "aaaaaaaaaaaaaaaaab"}) {
    const auto ids = tokenizer.encode(text);
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocabulary_size()) broken("an id is out of range", input);
    }
    if (tokenizer.encode(text) != ids) broken("a second encode() differs", input);
    std::string storage;
    const std::string decoded = tokenizer.decode(ids);
    if (as_utf8(decoded, storage).data() != decoded.data()) broken("decode() gives ill-formed text", input);
    tokenizer.decode(ids, true);
  }
}

/// Returns whether a reader took the input.
bool feed(const std::string& input, bool json) {
  try {
    if (!json) {
      check_sentencepiece_model(input, "fuzz.model");
      return true;
    }
    const Json parsed = parse_json(input, "fuzz.json");
    const bool tekken = parsed.is_object() && !parsed.contains("model");
    use(*make_bpe_tokenizer(tekken ? read_tekken(parsed, "fuzz.json") : read_tokenizer_json(parsed, "fuzz.json")),
        input);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

int run(size_t count, uint64_t seed) {
  std::vector<Json> seeds;
  for (int variant = 0; variant < 12; ++variant) seeds.push_back(small_tokenizer(variant));
  const Json tekken = small_tekken();
  const std::string model = small_sentencepiece();
  for (const Json& json : seeds) {
    if (!feed(json.dump(), true)) broken("a good file is refused", json.dump());
  }
  if (!feed(tekken.dump(), true) || !feed(model, false)) broken("a good file is refused", "tekken or model");

  Random random(seed);
  size_t taken = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool binary = random.one_in(6);
    std::string input = model;
    if (!binary) {
      Json json = random.one_in(40) ? tekken : seeds[random.below(seeds.size())];
      for (size_t changes = random.below(4); changes > 0; --changes) mutate(json, random);
      input = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    if (binary || random.one_in(3)) {
      for (size_t changes = 1 + random.below(4); changes > 0; --changes) mutate(input, random);
    }
    taken += feed(input, !binary);
  }
  std::printf("%zu inputs, %zu taken, %zu refused\n", count, taken, count - taken);
  return 0;
}

}  // namespace
}  // namespace yoke

int main(int argc, char** argv) {
  const size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  return yoke::run(count, seed);
}
