// Reading of tokenizer files that are wrong, cut short, lying or hostile, and what the good ones say about themselves.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class TokenizerFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("yoke_tokenizer_json_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, std::string_view content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  /// The message of the error that loading ends with; it must be one about a file.
  std::string message(const fs::path& path) const {
    try {
      load_tokenizer(path);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_file);
      return error.what();
    }
    ADD_FAILURE() << path << " was accepted";
    return "";
  }

  /// The same for a tokenizer.json that `spoil` has changed.
  std::string message_after(const std::function<void(Json&)>& spoil) const {
    Json json = good();
    spoil(json);
    return message(write("tokenizer.json", json.dump()));
  }

  static Json good() {
    Json vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary[byte_alphabet()[static_cast<size_t>(byte)]] = byte;
    vocabulary["he"] = 256;
    vocabulary["hel"] = 257;
    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    return {{"version", "1.0"},
            {"added_tokens", {{{"id", 258}, {"content", "<eos>"}, {"special", true}, {"normalized", false}}}},
            {"normalizer", nullptr},
            {"pre_tokenizer", byte_level},
            {"decoder", byte_level},
            {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"h e", "he l"}}}}};
  }

  fs::path folder_;
};

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(TokenizerFiles, GoodOneWorks) {
  const auto tokenizer = load_tokenizer(write("tokenizer.json", good().dump()));
  EXPECT_EQ(tokenizer->encode("hello<eos>"), (std::vector<int32_t>{257, 'l', 'o', 258}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{257, 'l', 'o', 258}), "hello<eos>");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{257, 'l', 'o', 258}, true), "hello");
  EXPECT_EQ(tokenizer->vocabulary_size(), 259);
  EXPECT_EQ(tokenizer->id_of("<eos>"), 258);
  EXPECT_EQ(tokenizer->id_of("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer->eos(), std::nullopt);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{259}), UserError);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), UserError);
}

TEST_F(TokenizerFiles, WhetherTextsBeginWithAToken) {
  const auto of = [&](const Json& processor, const Json& config) {
    Json json = good();
    json["post_processor"] = processor;
    write("tokenizer_config.json", config.dump());
    return load_tokenizer(write("tokenizer.json", json.dump()));
  };
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}};
  const auto special = [](const char* name) { return Json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
  const Json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto template_of = [&](const Json& single, int id) {
    return Json{{"type", "TemplateProcessing"},
                {"single", single},
                {"pair", single},
                {"special_tokens", {{"<eos>", {{"id", "<eos>"}, {"ids", {id}}, {"tokens", {"<eos>"}}}}}}};
  };
  const Json begins = template_of({special("<eos>"), sequence}, 258);
  const Json with_bos = {{"bos_token", "<eos>"}};
  EXPECT_FALSE(of(nullptr, with_bos)->adds_bos());
  EXPECT_FALSE(of(byte_level, with_bos)->adds_bos());
  EXPECT_FALSE(of(template_of({sequence, special("<eos>")}, 258), with_bos)->adds_bos());
  EXPECT_TRUE(of(begins, with_bos)->adds_bos());
  EXPECT_TRUE(of({{"type", "Sequence"}, {"processors", {byte_level, begins}}}, with_bos)->adds_bos());
  EXPECT_EQ(of(begins, Json::object())->bos(), 258);
  EXPECT_TRUE(of(byte_level, {{"bos_token", "<eos>"}, {"add_bos_token", true}})->adds_bos());
  EXPECT_FALSE(of(byte_level, {{"add_bos_token", true}})->adds_bos()) << "there is none";
  // What is prepended is the caller's business: ids of a text stay the text's.
  EXPECT_EQ(of(begins, with_bos)->encode("he"), (std::vector<int32_t>{256}));

  EXPECT_CONTAINS(
      message_after([&](Json& j) { j["post_processor"] = template_of(Json::array({special("<eos>")}), 300); }),
      "begins texts with the token 300");
  EXPECT_CONTAINS(
      message_after([&](Json& j) { j["post_processor"] = template_of(Json::array({special("<x>")}), 258); }), "<x>");
  EXPECT_CONTAINS(message_after([](Json& j) { j["post_processor"] = 7; }), "post_processor");
}

TEST_F(TokenizerFiles, MissingOrUnknown) {
  EXPECT_CONTAINS(message(folder_ / "nowhere"), "no such tokenizer");
  EXPECT_CONTAINS(message(folder_), "holds no tokenizer");
  EXPECT_CONTAINS(message(write("empty", "")), "is empty");
  EXPECT_CONTAINS(message(write("text", "Hello there, this is a text.\n")), "no tokenizer of a known kind");
  EXPECT_CONTAINS(message(write("other.json", "{\"a\": 1}")), "neither a tokenizer.json");
  EXPECT_CONTAINS(message(write("list.json", "[]")), "neither a tokenizer.json");
  write("vocab.json", "{}");
  EXPECT_CONTAINS(message(folder_), "vocab.json but no tokenizer.json");
}

TEST_F(TokenizerFiles, CutShortAnywhere) {
  const std::string whole = good().dump();
  for (size_t length = 1; length < whole.size(); length += 97) {
    EXPECT_CONTAINS(message(write("tokenizer.json", whole.substr(0, length))), "tokenizer.json");
  }
}

TEST_F(TokenizerFiles, Hostile) {
  EXPECT_CONTAINS(message(write("tokenizer.json", std::string(100000, '['))), "nested");
  EXPECT_CONTAINS(message(write("tokenizer.json", "{\"model\": " + std::string(100000, '{') + "}")), "nested");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"]["x1"] = 4000000000u; }), "4000000000");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"]["x1"] = UINT64_MAX; }), "integer from 0");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"]["x1"] = 2000000; }), "integer from 0");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"]["x1"] = -1; }), "integer from 0");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"]["x1"] = 1.5; }), "integer from 0");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"]["x1"] = "7"; }), "no number");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"]["x1"] = 7; }), "same id 7");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"] = Json::array(); }), "an object is expected");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["vocab"] = Json::object(); }), "not in the vocabulary");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["merges"][0] = "h zz"; }), "'zz'");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["merges"][0] = "l h"; }), "'lh'");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["merges"][0] = "he"; }), "merge 0 must be two tokens");
  EXPECT_CONTAINS(message_after([](Json& j) {
                    j["model"]["merges"][0] = {"h", "e", "l"};
                  }),
                  "merge 0 must be two tokens");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"].erase("merges"); }), "'merges' is missing");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["unk_token"] = "<unk>"; }), "'<unk>', which is not");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["byte_fallback"] = 1; }), "true or false");
  EXPECT_CONTAINS(message_after([](Json& j) { j["version"] = "2.0"; }), "version '2.0'");
}

TEST_F(TokenizerFiles, HostileAddedTokens) {
  EXPECT_CONTAINS(message_after([](Json& j) { j["added_tokens"][0]["id"] = 260; }), "would give it 258");
  EXPECT_CONTAINS(message_after([](Json& j) { j["added_tokens"][0]["id"] = 7; }), "would give it 258");
  EXPECT_CONTAINS(message_after([](Json& j) { j["added_tokens"][0]["content"] = "he"; }), "would give it 256");
  EXPECT_CONTAINS(message_after([](Json& j) { j["added_tokens"][0]["content"] = ""; }), "content is empty");
  EXPECT_CONTAINS(message_after([](Json& j) { j["added_tokens"][0]["content"] = std::string(5000, 'x'); }),
                  "5000 bytes");
  EXPECT_CONTAINS(message_after([](Json& j) { j["added_tokens"][0]["id"] = uint64_t{1} << 60; }), "integer from 0");
  EXPECT_CONTAINS(message_after([](Json& j) { j["added_tokens"][0].erase("id"); }), "'id' is missing");
  EXPECT_CONTAINS(message_after([](Json& j) { j["added_tokens"][0]["fuzzy"] = true; }), "'fuzzy'");
  EXPECT_CONTAINS(message_after([](Json& j) {
                    j["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
                    j["added_tokens"][0]["content"] = "  ";
                    j["added_tokens"][0]["normalized"] = true;
                  }),
                  "makes nothing of the added token");
}

TEST_F(TokenizerFiles, WhatIsNotSupportedIsNamed) {
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["type"] = "Unigram"; }), "'Unigram'");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["dropout"] = 0.1; }), "dropout");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }), "end_of_word_suffix");
  EXPECT_CONTAINS(message_after([](Json& j) { j["model"]["sorcery"] = 1; }), "'sorcery'");
  EXPECT_CONTAINS(message_after([](Json& j) { j["normalizer"] = {{"type", "BertNormalizer"}}; }), "'BertNormalizer'");
  EXPECT_CONTAINS(message_after([](Json& j) {
                    j["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
                  }),
                  "'UnicodeScripts'");
  EXPECT_CONTAINS(message_after([](Json& j) { j["pre_tokenizer"]["shout"] = true; }), "'shout'");
  EXPECT_CONTAINS(message_after([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), "'WordPiece'");
}

/// A tokenizer.json that splits by `pattern`.
Json split_by(Json json, const std::string& pattern) {
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return json;
}

TEST_F(TokenizerFiles, RegularExpressions) {
  const auto spoil = [&](const std::string& pattern) {
    return message_after([&](Json& j) { j = split_by(j, pattern); });
  };
  EXPECT_CONTAINS(spoil("(unclosed"), "(unclosed");
  EXPECT_CONTAINS(spoil("\\p{Nonsense}"), "Nonsense");
  EXPECT_CONTAINS(spoil(std::string(100000, 'a')), "100000 bytes");
  EXPECT_CONTAINS(spoil(std::string(5000, '(') + std::string(5000, ')')), "can't be used");
  EXPECT_CONTAINS(spoil("a{100001}"), "can't be used");

  // Expressions that would take for ever: loading is fine, and so is ordinary text; the text that sets them off ends
  // in an error within seconds.
  for (const char* pattern : {"(a+)+$", "(a|aa)+$", "(.*a){20}b", "(?:(?:a*)*)*c"}) {
    const auto tokenizer = load_tokenizer(write("tokenizer.json", split_by(good(), pattern).dump()));
    EXPECT_FALSE(tokenizer->encode("hello").empty());
    try {
      tokenizer->encode(std::string(3000, 'a') + "!");
    } catch (const UserError& error) {
      EXPECT_CONTAINS(std::string(error.what()), "can't be matched");
    }
  }
}

TEST_F(TokenizerFiles, BeginAndEndComeFromTheFilesBeside) {
  const auto load = [&] { return load_tokenizer(folder_); };
  write("tokenizer.json", good().dump());
  write("config.json", R"({"bos_token_id": 3, "eos_token_id": [258, 5]})");
  EXPECT_EQ(load()->bos(), 3);
  EXPECT_EQ(load()->eos(), 258);
  const std::string before = load()->fingerprint();
  write("generation_config.json", R"({"eos_token_id": 4})");
  EXPECT_EQ(load()->eos(), 4);
  EXPECT_NE(load()->fingerprint(), before);
  write("special_tokens_map.json", R"({"eos_token": "he"})");
  EXPECT_EQ(load()->eos(), 256);
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"__type": "AddedToken", "content": "<eos>"}})");
  EXPECT_EQ(load()->eos(), 258);
  EXPECT_EQ(load()->bos(), 3);

  write("tokenizer_config.json", R"({"eos_token": "<gone>"})");
  EXPECT_CONTAINS(message(folder_), "'<gone>', which is no token");
  write("tokenizer_config.json", "{\"eos_token\": ");
  EXPECT_CONTAINS(message(folder_), "tokenizer_config.json: is not valid JSON");
  write("tokenizer_config.json", "{}");
  write("special_tokens_map.json", "{}");
  write("generation_config.json", R"({"eos_token_id": 259})");
  EXPECT_CONTAINS(message(folder_), "eos_token_id");
}

TEST_F(TokenizerFiles, RanksMustBeLlama3s) {
  EXPECT_CONTAINS(message(write("tokenizer.model", "IQ== 0\nIg== 1\n")), "2 ranks");
  EXPECT_CONTAINS(message(write("tokenizer.model", "IQ== 0\nIg== 7\n")), "line 2 has the rank 7");
  EXPECT_CONTAINS(message(write("tokenizer.model", "IQ== 0\nIg=\n")), "line 2 is not");
}

TEST_F(TokenizerFiles, Tekken) {
  Json json = {{"config", {{"pattern", "."}, {"default_vocab_size", 258}, {"default_num_special_tokens", 2}}},
               {"vocab", Json::array()}};
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const std::string base64 = {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    json["vocab"].push_back({{"rank", byte}, {"token_bytes", base64}, {"token_str", nullptr}});
  }
  const auto spoil = [&](const std::function<void(Json&)>& change) {
    Json copy = json;
    change(copy);
    return message(write("tekken.json", copy.dump()));
  };
  const auto tokenizer = load_tokenizer(write("tekken.json", json.dump()));
  EXPECT_EQ(tokenizer->encode("A<s>"), (std::vector<int32_t>{2 + 'A', 1}));
  EXPECT_CONTAINS(spoil([](Json& j) { j["vocab"][3]["rank"] = 9; }), "rank");
  EXPECT_CONTAINS(spoil([](Json& j) { j["vocab"][3]["token_bytes"] = "?"; }), "base64");
  EXPECT_CONTAINS(spoil([](Json& j) { j["vocab"][3]["token_bytes"] = "AA=="; }), "listed twice");
  EXPECT_CONTAINS(spoil([](Json& j) { j["vocab"][3]["token_bytes"] = "AAAA"; }), "the byte 3 has no token");
  EXPECT_CONTAINS(spoil([](Json& j) { j["config"]["default_vocab_size"] = 300; }), "default_vocab_size");
  EXPECT_CONTAINS(spoil([](Json& j) { j["config"]["default_num_special_tokens"] = 1 << 30; }), "default_num_special");
}

TEST_F(TokenizerFiles, Bytes) {
  const auto bytes = load_tokenizer("bytes");
  std::string all;
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(byte));
    ids.push_back(byte);
  }
  EXPECT_EQ(bytes->encode(all), ids);
  EXPECT_EQ(bytes->bos(), 256);
  EXPECT_EQ(bytes->eos(), 257);
  EXPECT_EQ(bytes->id_of("<|pad|>"), 258);
  EXPECT_EQ(bytes->vocabulary_size(), 259);
  EXPECT_EQ(bytes->decode(bytes->encode("é 字 👩‍👩‍👧 \n<|eos|>")), "é 字 👩‍👩‍👧 \n<|eos|>");

  // Written into a model folder it is the same tokenizer.
  write_byte_tokenizer(folder_);
  const auto again = load_tokenizer(folder_);
  EXPECT_EQ(again->encode(all + "<|eos|>x"), bytes->encode(all + "<|eos|>x"));
  EXPECT_EQ(again->bos(), 256);
  EXPECT_EQ(again->eos(), 257);
  EXPECT_EQ(again->vocabulary_size(), 259);
  EXPECT_EQ(tokenizer_files(folder_).size(), 2u);
}

TEST(Utf8, IllFormedPartsAreReplacedOneByOne) {
  std::string storage;
  const auto repaired = [&](std::string_view text) { return std::string(as_utf8(text, storage)); };
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(repaired("plain ascii text"), "plain ascii text");
  EXPECT_EQ(repaired("\xe5\xad\x97"), "\xe5\xad\x97");
  // Table 3-8 of the Unicode standard, chapter 3.9.
  EXPECT_EQ(repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(repaired("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(repaired("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

}  // namespace
}  // namespace yoke
