#include "checkpoint/hf_config.h"

#include "base/file.h"
#include "base/log.h"
#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

using nlohmann::json;
using test::error_of;

json minimal(const char* architecture) {
  return {{"architectures", {architecture}}, {"vocab_size", 128},      {"hidden_size", 64},
          {"intermediate_size", 96},         {"num_hidden_layers", 4}, {"num_attention_heads", 32}};
}

ModelConfig read(const json& document) { return parse_hf_config(document.dump(), "config.json").model; }

json with(json document, const std::string& key, const json& value) {
  document[key] = value;
  return document;
}

// Values from the configuration classes of transformers (4.45 and 5; Qwen3: 4.51 and 5).
TEST(HfConfig, DefaultsAreThoseOfTransformers) {
  const struct {
    const char* name;
    int64_t kv_heads, head_dim, max_positions, window;
    bool bias, qk_norm, tokens;
  } families[] = {{"LlamaForCausalLM", 32, 2, 2048, 0, false, false, true},
                  {"MistralForCausalLM", 8, 2, 131072, 4096, false, false, true},
                  {"Qwen2ForCausalLM", 32, 2, 32768, 0, true, false, false},
                  {"Qwen3ForCausalLM", 32, 128, 32768, 0, false, true, false}};
  for (const auto& f : families) {
    const ModelConfig model = read(minimal(f.name));
    EXPECT_EQ(model.kv_heads, f.kv_heads) << f.name;
    EXPECT_EQ(model.head_dim, f.head_dim) << f.name;
    EXPECT_EQ(model.max_positions, f.max_positions) << f.name;
    EXPECT_EQ(model.sliding_window, f.window) << f.name;
    EXPECT_EQ(model.qkv_bias, f.bias) << f.name;
    EXPECT_EQ(model.qk_norm, f.qk_norm) << f.name;
    EXPECT_EQ(model.norm_epsilon, 1e-6) << f.name;
    EXPECT_EQ(model.rope_theta, 10000.0) << f.name;
    EXPECT_EQ(model.initializer_range, 0.02) << f.name;
    EXPECT_FALSE(model.tied_embeddings) << f.name;
    EXPECT_EQ(model.bos.has_value(), f.tokens) << f.name;
    EXPECT_EQ(model.eos, f.tokens ? std::vector<int32_t>{2} : std::vector<int32_t>{}) << f.name;
    json by_type = minimal(f.name);
    by_type.erase("architectures");
    by_type["model_type"] = std::string(f.name).substr(0, std::string(f.name).find("For"));
    for (char& c : by_type["model_type"].get_ref<std::string&>()) c = static_cast<char>(std::tolower(c));
    EXPECT_EQ(read(by_type), model);
  }
}

TEST(HfConfig, NullIsNotAbsent) {
  const json mistral = minimal("MistralForCausalLM");
  EXPECT_EQ(read(with(mistral, "sliding_window", nullptr)).sliding_window, 0);
  EXPECT_EQ(read(with(mistral, "num_key_value_heads", nullptr)).kv_heads, 32);
  EXPECT_FALSE(read(with(mistral, "bos_token_id", nullptr)).bos.has_value());
  EXPECT_TRUE(read(with(mistral, "eos_token_id", nullptr)).eos.empty());
}

TEST(HfConfig, RopeIsReadFromEverySpelling) {
  const json llama = minimal("LlamaForCausalLM");
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const RopeScaling scaling = read(with(llama, "rope_scaling", llama3)).rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(scaling.factor, 32);
  EXPECT_EQ(scaling.low_frequency_factor, 1);
  EXPECT_EQ(scaling.high_frequency_factor, 4);
  EXPECT_EQ(scaling.original_max_positions, 8192);
  const ModelConfig linear = read(with(llama, "rope_scaling", {{"type", "linear"}, {"factor", 2}}));
  EXPECT_EQ(linear.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(linear.rope_scaling.factor, 2);
  EXPECT_EQ(linear.rope_theta, 10000);
  const json parameters = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 500000.0}};
  const ModelConfig newer = read(with(llama, "rope_parameters", parameters));
  EXPECT_EQ(newer.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(newer.rope_theta, 500000);
  EXPECT_EQ(read(with(llama, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}})).rope_theta, 7);
  EXPECT_EQ(read(with(llama, "rope_theta", 1000000)).rope_theta, 1000000);
}

TEST(HfConfig, WindowsOfUpperLayers) {
  json qwen = with(minimal("Qwen2ForCausalLM"), "use_sliding_window", true);
  qwen["max_window_layers"] = 3;
  EXPECT_EQ(read(qwen).sliding_window, 4096);
  EXPECT_EQ(read(qwen).window(2), 0);
  EXPECT_EQ(read(qwen).window(3), 4096);
  EXPECT_EQ(read(with(qwen, "max_window_layers", 28)).sliding_window, 0);
  EXPECT_EQ(read(with(qwen, "sliding_window", nullptr)).sliding_window, 0);
  EXPECT_EQ(read(with(qwen, "use_sliding_window", false)).sliding_window, 0);
  const json types = {"full_attention", "sliding_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(read(with(qwen, "layer_types", types)).first_sliding_layer, 1);
  const json mixed = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_CONTAINS(error_of([&] { read(with(qwen, "layer_types", mixed)); }), "layer_types[1]");
}

TEST(HfConfig, FaultsNameTheField) {
  const json llama = minimal("LlamaForCausalLM");
  const struct {
    const char* key;
    json value;
    const char* message;
  } cases[] = {
      {"architectures", {"GPT2LMHeadModel"}, "Qwen2ForCausalLM and Qwen3ForCausalLM"},
      {"architectures", {"LlamaForSequenceClassification"}, "'LlamaForSequenceClassification' isn't supported"},
      {"architectures", {"LlamaForCausalLM", "MistralForCausalLM"}, "architectures is array"},
      {"architectures", nullptr, "architectures"},
      {"model_type", "mistral", "model_type is 'mistral'; legal is 'llama'"},
      {"vocab_size", nullptr, "vocab_size is absent or null"},
      {"vocab_size", "128", "vocab_size is '128'; legal is a whole number"},
      {"vocab_size", 128.5, "vocab_size is 128.5"},
      {"vocab_size", -1, "vocab_size is -1"},
      {"vocab_size", 18446744073709551615u, "vocab_size is 18446744073709551615"},
      {"hidden_size", 9007199254740992, "hidden_size is 9007199254740992"},
      {"num_hidden_layers", 1000000, "num_hidden_layers is 1000000"},
      {"head_dim", 2147483647, "head_dim is 2147483647"},
      {"head_dim", 3, "even"},
      {"num_attention_heads", 0, "num_attention_heads is 0"},
      {"num_attention_heads", 7, "num_attention_heads is 7; legal is a divisor"},
      {"num_key_value_heads", 5, "num_key_value_heads is 5"},
      {"rms_norm_eps", 0, "rms_norm_eps is 0"},
      {"rms_norm_eps", "small", "rms_norm_eps is 'small'"},
      {"rope_theta", -1, "rope_theta is -1"},
      {"tie_word_embeddings", 1, "tie_word_embeddings is 1; legal is true or false"},
      {"eos_token_id", -1, "eos_token_id is -1"},
      {"eos_token_id", {1, "2"}, "eos_token_id is '2'"},
      {"sliding_window", 4096, "LlamaForCausalLM has no sliding window"},
      {"attention_bias", true, "attention_bias is true"},
      {"mlp_bias", true, "mlp_bias is 'true', which yoke doesn't support; legal is false or null"},
      {"hidden_act", "gelu", "hidden_act"},
      {"pretraining_tp", 2, "pretraining_tp"},
      {"attention_dropout", 0.1, "attention_dropout"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor"},
      {"quantization_config", {{"bits", 4}}, "quantization_config"},
      {"auto_map", {{"AutoModel", "x.Y"}}, "auto_map"},
      {"final_logit_softcapping", 30.0, "final_logit_softcapping"},
      {"num_local_experts", 8, "num_local_experts"},
      {"some_norm_scale", 3, "the field 'some_norm_scale' (found: '3') is unknown"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 2}}, "rope_scaling.rope_type is 'yarn'"},
      {"rope_scaling", {{"rope_type", "linear"}}, "rope_scaling.factor is absent"},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}, "rope_scaling.factor is 0.5"},
      {"rope_scaling", {{"factor", 2}}, "factor"},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}, "low_freq_factor is absent"},
      {"rope_scaling", {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2}}, "rope_scaling.type"},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"mscale", 3}}, "mscale"},
      {"rope_scaling", 7, "rope_scaling is 7"},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1.0}}}}, "full_attention"},
      {"layer_types", {"full_attention"}, "a list of 4 names"},
      {"layer_types", {"x", "x", "x", "x"}, "layer_types[0] is 'x'"},
  };
  for (const auto& [key, value, message] : cases) {
    const std::string error = error_of([&, &k = key, &v = value] { read(with(llama, k, v)); });
    EXPECT_CONTAINS(error, message);
    EXPECT_CONTAINS(error, "config.json: ");
  }
  const auto qwen3 = with(minimal("Qwen3ForCausalLM"), "attention_bias", true);
  EXPECT_CONTAINS(error_of([&] { read(qwen3); }), "attention_bias");
}

TEST(HfConfig, BrokenJson) {
  const auto fails = [](const std::string& text, const char* message) {
    EXPECT_CONTAINS(error_of([&] { parse_hf_config(text, "config.json"); }), message);
  };
  fails("", "not valid JSON");
  fails("[]", "is array; legal is an object");
  fails("{\"vocab_size\": NaN}", "not valid JSON");
  fails("{\"vocab_size\": 1e999}", "not valid JSON");
  fails("{\"a\": \"\xc3\x28\"}", "not valid JSON");
  fails("{\"vocab_size\": 1, \"vocab_size\": 2}", "'vocab_size' twice");
  fails("{\"a\": {\"b\": 1, \"b\": 1}}", "'b' twice");
  fails("{\"a\": " + std::string(100000, '['), "deeper than 64");
  fails(std::string((size_t{16} << 20) + 1, ' '), "at most 16777216");
}

TEST(HfConfig, RoundTripKeepsWhatItDoesNotUse) {
  json document = minimal("LlamaForCausalLM");
  document["transformers_version"] = "4.45.2";
  document["transformers.js_config"] = {{"dtype", "q4"}};
  document["eos_token_id"] = {1, 2};
  document["torch_dtype"] = "float32";
  const HfConfig config = parse_hf_config(document.dump(), "config.json");
  json expected = document;
  expected["torch_dtype"] = "bfloat16";
  EXPECT_EQ(make_hf_config(config.model, config.document, DType::bf16), expected);
  ModelConfig changed = config.model;
  changed.vocabulary = 256;
  changed.rope_theta = 5e5;
  const json written = make_hf_config(changed, config.document, DType::f16);
  EXPECT_EQ(read(written), changed);
  EXPECT_EQ(written["transformers.js_config"], document["transformers.js_config"]);
  EXPECT_EQ(written["torch_dtype"], "float16");
}

TEST(HfConfig, EveryExpressibleModelRoundTrips) {
  for (const Architecture architecture :
       {Architecture::llama, Architecture::mistral, Architecture::qwen2, Architecture::qwen3}) {
    ModelConfig model{.architecture = architecture,
                      .vocabulary = 99,
                      .hidden = 64,
                      .layers = 3,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 24,
                      .mlp = 80,
                      .max_positions = 77,
                      .norm_epsilon = 1e-5,
                      .rope_theta = 123456,
                      .tied_embeddings = true,
                      .initializer_range = 0.01,
                      .bos = 5,
                      .eos = {7, 9}};
    model.qkv_bias = architecture == Architecture::qwen2;
    model.qk_norm = architecture == Architecture::qwen3;
    if (architecture != Architecture::llama) model.sliding_window = 16;
    if (architecture == Architecture::qwen2) model.first_sliding_layer = 1;
    model.rope_scaling = {RopeScaling::Kind::llama3, 8, 1, 4, 512};
    const json document = make_hf_config(model, nullptr, DType::f32);
    EXPECT_EQ(read(document), model) << document.dump(1);
    json newer = document;  // transformers 5 keeps everything about the rotation in one object
    newer["rope_parameters"] = newer["rope_scaling"];
    newer["rope_parameters"]["rope_theta"] = newer["rope_theta"];
    newer.erase("rope_scaling");
    newer.erase("rope_theta");
    EXPECT_EQ(read(newer), model);
    model.rope_scaling = {};
    const json changed = make_hf_config(model, newer, DType::f32);
    EXPECT_FALSE(changed.contains("rope_scaling"));
    EXPECT_EQ(read(changed), model);
  }
  ModelConfig impossible = read(minimal("LlamaForCausalLM"));
  impossible.sliding_window = 8;
  EXPECT_CONTAINS(error_of([&] { make_hf_config(impossible, nullptr, DType::f32); }, ExitCode::usage), "can't express");
}

TEST(HfConfig, FolderOrFile) {
  const test::Scratch scratch;
  EXPECT_CONTAINS(error_of([&] { read_hf_config(scratch.path()); }), "config.json");
  write_file(scratch / "config.json", minimal("LlamaForCausalLM").dump());
  EXPECT_EQ(read_hf_config(scratch.path()).model, read_hf_config(scratch / "config.json").model);
}

}  // namespace
}  // namespace yoke
