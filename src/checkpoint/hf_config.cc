#include "checkpoint/hf_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/hf_fields.h"
#include "checkpoint/json.h"
#include "checkpoint/text.h"

namespace yoke {

namespace {

using nlohmann::json;

/// What differs between the families: names, and the defaults of transformers.
struct Family {
  Architecture architecture;
  const char* name;
  const char* model_type;
  int64_t kv_heads;  ///< when absent; 0: as many as heads
  int64_t head_dim;  ///< when absent; 0: hidden / heads
  int64_t max_positions;
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;
};

const Family kFamilies[] = {
    {Architecture::llama, "LlamaForCausalLM", "llama", 0, 0, 2048, 1, {2}},
    {Architecture::mistral, "MistralForCausalLM", "mistral", 8, 0, 131072, 1, {2}},
    {Architecture::qwen2, "Qwen2ForCausalLM", "qwen2", 32, 0, 32768, {}, {}},
    {Architecture::qwen3, "Qwen3ForCausalLM", "qwen3", 32, 128, 32768, {}, {}},
};

constexpr const char* kLegalArchitectures =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM";
constexpr int64_t kDefaultWindow = 4096;       // Mistral and Qwen, when absent
constexpr int64_t kDefaultWindowLayers = 28;   // Qwen's max_window_layers
constexpr double kDefaultNormEpsilon = 1e-6;   // all four
constexpr double kDefaultRopeTheta = 10000.0;  // all four

const Family& family_of(Architecture architecture) {
  return *std::ranges::find(kFamilies, architecture, &Family::architecture);
}

bool is_qwen(Architecture a) { return a == Architecture::qwen2 || a == Architecture::qwen3; }

/// Typed access to an object's fields. An absent field and null give the default.
class Fields {
 public:
  Fields(const json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  bool is_null(const char* key) const { return object_.contains(key) && object_[key].is_null(); }
  const json& operator[](const char* key) const { return object_[key]; }

  int64_t whole(const char* key, std::optional<int64_t> absent) const {
    if (!has(key) && absent) return *absent;
    return whole_value(key, has(key) ? object_[key] : json());
  }

  int64_t whole_value(const char* key, const json& value) const {
    const bool legal = value.is_number_integer() &&
                       (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
    if (!legal) fail(key, value, "a whole number");
    return value.get<int64_t>();
  }

  double number(const char* key, std::optional<double> absent) const {
    if (!has(key) && absent) return *absent;
    if (!has(key) || !object_[key].is_number()) fail(key, has(key) ? object_[key] : json(), "a number");
    return object_[key].get<double>();
  }

  bool boolean(const char* key, bool absent) const {
    if (!has(key)) return absent;
    if (!object_[key].is_boolean()) fail(key, object_[key], "true or false");
    return object_[key].get<bool>();
  }

  std::string text(const char* key) const {
    if (!object_[key].is_string()) fail(key, object_[key], "a string");
    return object_[key].get<std::string>();
  }

  int32_t token(const char* key, const json& value) const {
    const int64_t id = whole_value(key, value);
    if (id < 0 || id > INT32_MAX) fail(key, value, "a token id, 0 to 2^31 - 1");
    return static_cast<int32_t>(id);
  }

  [[noreturn]] void fail(std::string_view key, const json& found, const std::string& legal) const {
    // Never dump a whole structure: it may be as large as the file.
    const std::string what = found.is_structured() ? found.type_name()
                             : found.is_null()     ? "absent or null"
                             : found.is_string()   ? shown(found.get_ref<const std::string&>())
                                                   : found.dump();
    fail_file("{}: {}{} is {}; legal is {}.", file_, prefix_, key, what, legal);
  }

  const std::string& file() const { return file_; }

 private:
  const json& object_;
  std::string file_, prefix_;
};

const Family& find_family(const Fields& fields) {
  const Family* family = nullptr;
  if (fields.has("architectures") && !fields["architectures"].empty()) {
    const json& names = fields["architectures"];
    if (!names.is_array() || names.size() != 1 || !names[0].is_string()) {
      fields.fail("architectures", names, fmt::format("a list with one of {}", kLegalArchitectures));
    }
    const auto& name = names[0].get_ref<const std::string&>();
    family = std::ranges::find(kFamilies, name, &Family::name);
    if (family == std::end(kFamilies)) {
      fail_file("{}: the architecture {} isn't supported; legal are {}.", fields.file(), shown(name),
                kLegalArchitectures);
    }
    if (fields.has("model_type") && fields.text("model_type") != family->model_type) {
      fields.fail("model_type", fields["model_type"], fmt::format("'{}' for {}", family->model_type, family->name));
    }
    return *family;
  }
  if (!fields.has("model_type")) fields.fail("architectures", json(), kLegalArchitectures);
  const std::string type = fields.text("model_type");
  family = std::ranges::find(kFamilies, type, &Family::model_type);
  if (family == std::end(kFamilies)) {
    fail_file("{}: the model_type {} isn't supported; legal are llama, mistral, qwen2 and qwen3 ({}).", fields.file(),
              shown(type), kLegalArchitectures);
  }
  return *family;
}

/// The rotary embedding: transformers 5 writes everything into rope_parameters, older versions rope_theta beside
/// rope_scaling, whose kind was first called `type`.
void read_rope(const Fields& fields, ModelConfig* model) {
  const bool both = fields.has("rope_parameters") && fields.has("rope_scaling");
  if (both && fields["rope_parameters"] != fields["rope_scaling"]) {
    fields.fail("rope_scaling", fields["rope_scaling"], "absent, or the same as rope_parameters");
  }
  model->rope_theta = fields.number("rope_theta", kDefaultRopeTheta);
  const char* key = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!fields.has(key)) return;
  if (!fields[key].is_object()) fields.fail(key, fields[key], "an object or null");
  const Fields rope(fields[key], fields.file(), std::string(key) + ".");
  if (rope.has("rope_theta")) {
    const double theta = rope.number("rope_theta", {});
    if (fields.has("rope_theta") && theta != model->rope_theta) {
      fields.fail("rope_theta", fields["rope_theta"], fmt::format("the same as {}.rope_theta ({})", key, theta));
    }
    model->rope_theta = theta;
  }
  std::string kind = "default";
  if (rope.has("rope_type") || rope.has("type")) kind = rope.text(rope.has("rope_type") ? "rope_type" : "type");
  if (rope.has("rope_type") && rope.has("type") && rope.text("type") != kind) {
    rope.fail("type", rope["type"], fmt::format("absent, or the same as rope_type ({})", shown(kind)));
  }
  RopeScaling& scaling = model->rope_scaling;
  std::vector<std::string> legal = {"rope_type", "type", "rope_theta", "original_max_position_embeddings"};
  if (kind == "linear" || kind == "llama3") {
    scaling.kind = kind == "linear" ? RopeScaling::Kind::linear : RopeScaling::Kind::llama3;
    scaling.factor = rope.number("factor", {});
    legal.push_back("factor");
  } else if (kind != "default") {
    rope.fail("rope_type", json(kind), "default, linear or llama3; other kinds of scaling aren't supported");
  }
  if (kind == "llama3") {
    scaling.low_frequency_factor = rope.number("low_freq_factor", {});
    scaling.high_frequency_factor = rope.number("high_freq_factor", {});
    scaling.original_max_positions = rope.whole("original_max_position_embeddings", {});
    legal.insert(legal.end(), {"low_freq_factor", "high_freq_factor"});
  }
  for (const auto& [name, value] : fields[key].items()) {
    const bool off =
        value.is_null() ||
        ((name == "partial_rotary_factor" || name == "attention_factor" || name == "factor") && value == 1);
    if (!off && std::ranges::find(legal, name) == legal.end()) {
      fail_file("{}: {}.{} isn't supported with the rope_type '{}'; legal are {}.", fields.file(), key, shown(name),
                kind, listed(legal));
    }
  }
}

/// layer_types has to be what the other fields say, or, for Qwen, full attention below and windows above.
void read_layer_types(const Fields& fields, ModelConfig* model) {
  const json& types = fields["layer_types"];
  if (!types.is_array() || types.size() != static_cast<size_t>(model->layers)) {
    fields.fail("layer_types", types, fmt::format("a list of {} names", model->layers));
  }
  int64_t first = model->layers;
  for (int64_t l = 0; l < model->layers; ++l) {
    const json& type = types[static_cast<size_t>(l)];
    if (type != "full_attention" && type != "sliding_attention") {
      fields.fail(fmt::format("layer_types[{}]", l), type, "'full_attention' or 'sliding_attention'");
    }
    if (type == "sliding_attention") first = std::min(first, l);
    if (type == "full_attention" && first < l) {
      fields.fail(fmt::format("layer_types[{}]", l), type,
                  "'sliding_attention', because a layer below has it (only windows in all upper layers are supported)");
    }
  }
  const bool windows = first < model->layers;
  if (windows && model->sliding_window == 0) {
    fields.fail("layer_types", types, "'full_attention' everywhere, because the other fields set no sliding window");
  }
  if (is_qwen(model->architecture)) {
    if (windows) model->first_sliding_layer = first;
    if (!windows) model->sliding_window = model->first_sliding_layer = 0;
  } else if (model->sliding_window != 0 && first != 0) {
    fields.fail("layer_types", types, "'sliding_attention' everywhere, because sliding_window is set");
  }
}

void read_window(const Fields& fields, ModelConfig* model) {
  const auto window = [&] {
    return fields.is_null("sliding_window") ? 0 : fields.whole("sliding_window", kDefaultWindow);
  };
  if (model->architecture == Architecture::llama) {
    if (fields.has("sliding_window")) {
      fields.fail("sliding_window", fields["sliding_window"], "null: LlamaForCausalLM has no sliding window");
    }
  } else if (model->architecture == Architecture::mistral) {
    model->sliding_window = window();
  } else if (fields.boolean("use_sliding_window", false)) {
    model->sliding_window = window();
    model->first_sliding_layer = fields.whole("max_window_layers", kDefaultWindowLayers);
    if (model->first_sliding_layer < 0) {
      fields.fail("max_window_layers", fields["max_window_layers"], "0 or more");
    }
    if (model->sliding_window == 0 || model->first_sliding_layer >= model->layers) {
      model->sliding_window = model->first_sliding_layer = 0;
    }
  }
  if (fields.has("sliding_window") && fields.whole("sliding_window", {}) <= 0) {
    fields.fail("sliding_window", fields["sliding_window"], "a positive whole number or null");
  }
  if (!is_qwen(model->architecture) && fields.boolean("use_sliding_window", false) && model->sliding_window == 0) {
    fields.fail("use_sliding_window", true, "false: no sliding window is set");
  }
  if (fields.has("layer_types")) read_layer_types(fields, model);
}

void read_biases(const Fields& fields, const Family& family, ModelConfig* model) {
  model->qkv_bias = family.architecture == Architecture::qwen2;
  model->qk_norm = family.architecture == Architecture::qwen3;
  if (fields.boolean("attention_bias", model->qkv_bias) != model->qkv_bias) {
    fields.fail("attention_bias", fields["attention_bias"],
                model->qkv_bias ? "true: Qwen2ForCausalLM always has biases on queries, keys and values"
                                : fmt::format("false: biases in the attention of {} aren't supported", family.name));
  }
}

void read_tokens(const Fields& fields, const Family& family, ModelConfig* model) {
  model->bos = family.bos;
  model->eos = family.eos;
  if (fields.is_null("bos_token_id")) model->bos.reset();
  if (fields.has("bos_token_id")) model->bos = fields.token("bos_token_id", fields["bos_token_id"]);
  if (fields.is_null("eos_token_id")) model->eos.clear();
  if (!fields.has("eos_token_id")) return;
  const json& eos = fields["eos_token_id"];
  model->eos.clear();
  if (!eos.is_array()) {
    model->eos.push_back(fields.token("eos_token_id", eos));
    return;
  }
  if (eos.size() > 1024) fields.fail("eos_token_id", eos, "a token id or a list of at most 1024");
  for (const json& id : eos) model->eos.push_back(fields.token("eos_token_id", id));
}

/// Errors for fields that would change the mathematics; the names that only deserve a warning.
std::vector<std::string> check_other_fields(const json& document, std::string_view file) {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : document.items()) {
    const FieldVerdict verdict = judge_field(name, value);
    const std::string found = value.is_structured() ? value.type_name() : shown(value.dump());
    if (!verdict.legal) {
      fail_file("{}: {} is {}, which yoke doesn't support; legal is {}.", file, name, found, verdict.legal_values);
    }
    if (verdict.kind == FieldKind::suspicious) {
      fail_file(
          "{}: the field {} (found: {}) is unknown and may change the model's mathematics. If it doesn't, remove it.",
          file, shown(name), found);
    }
    if (verdict.kind == FieldKind::unknown) unknown.push_back(shown(name));
  }
  return unknown;
}

ModelConfig read_model(const json& document, const std::string& file) {
  if (!document.is_object()) fail_file("{}: is {}; legal is an object.", file, document.type_name());
  const Fields fields(document, file);
  const Family& family = find_family(fields);
  ModelConfig model;
  model.architecture = family.architecture;
  model.vocabulary = fields.whole("vocab_size", {});
  model.hidden = fields.whole("hidden_size", {});
  model.mlp = fields.whole("intermediate_size", {});
  model.layers = fields.whole("num_hidden_layers", {});
  model.heads = fields.whole("num_attention_heads", {});
  const bool kv_null = fields.is_null("num_key_value_heads");
  model.kv_heads = fields.whole("num_key_value_heads", kv_null || family.kv_heads == 0 ? model.heads : family.kv_heads);
  int64_t head_dim = family.head_dim;
  if (!fields.has("head_dim") && (head_dim == 0 || fields.is_null("head_dim"))) {
    if (model.heads < 1 || model.hidden % model.heads != 0) {
      fields.fail("num_attention_heads", model.heads,
                  fmt::format("a divisor of hidden_size ({}) where head_dim is absent", model.hidden));
    }
    head_dim = model.hidden / model.heads;
  }
  model.head_dim = fields.whole("head_dim", head_dim);
  model.max_positions = fields.whole("max_position_embeddings", family.max_positions);
  model.norm_epsilon = fields.number("rms_norm_eps", kDefaultNormEpsilon);
  model.initializer_range = fields.number("initializer_range", 0.02);
  model.tied_embeddings = fields.boolean("tie_word_embeddings", false);
  read_rope(fields, &model);
  read_biases(fields, family, &model);
  read_window(fields, &model);
  read_tokens(fields, family, &model);
  try {
    model.validate();
  } catch (const UserError& error) {
    fail_file("{}: {}", file, error.what());
  }
  return model;
}

void put_rope(const ModelConfig& model, json* document) {
  json scaling = json::object();
  if (model.rope_scaling.kind != RopeScaling::Kind::none) {
    scaling["rope_type"] = model.rope_scaling.kind == RopeScaling::Kind::linear ? "linear" : "llama3";
    scaling["factor"] = model.rope_scaling.factor;
  }
  if (model.rope_scaling.kind == RopeScaling::Kind::llama3) {
    scaling["low_freq_factor"] = model.rope_scaling.low_frequency_factor;
    scaling["high_freq_factor"] = model.rope_scaling.high_frequency_factor;
    scaling["original_max_position_embeddings"] = model.rope_scaling.original_max_positions;
  }
  if (document->contains("rope_parameters")) {
    document->erase("rope_theta");
    document->erase("rope_scaling");
    if (scaling.empty()) scaling["rope_type"] = "default";
    scaling["rope_theta"] = model.rope_theta;
    (*document)["rope_parameters"] = scaling;
  } else {
    (*document)["rope_theta"] = model.rope_theta;
    (*document)["rope_scaling"] = scaling.empty() ? json() : scaling;
  }
}

void put_window(const ModelConfig& model, json* document) {
  document->erase("layer_types");
  const json window = model.sliding_window == 0 ? json() : json(model.sliding_window);
  if (model.architecture == Architecture::mistral) (*document)["sliding_window"] = window;
  if (model.architecture == Architecture::llama) document->erase("sliding_window");
  if (is_qwen(model.architecture)) {
    (*document)["sliding_window"] = window;
    (*document)["use_sliding_window"] = model.sliding_window != 0;
    (*document)["max_window_layers"] = model.sliding_window == 0 ? model.layers : model.first_sliding_layer;
  } else {
    document->erase("use_sliding_window");
    document->erase("max_window_layers");
  }
}

json eos_value(const ModelConfig& model) {
  if (model.eos.empty()) return nullptr;
  return model.eos.size() == 1 ? json(model.eos[0]) : json(model.eos);
}

}  // namespace

HfConfig parse_hf_config(std::string_view text, std::string_view file) {
  HfConfig config{.document = parse_json(text, file)};
  config.model = read_model(config.document, std::string(file));
  const std::vector<std::string> unknown = check_other_fields(config.document, file);
  if (!unknown.empty()) {
    log::warn("{}: yoke doesn't know these fields and takes them for notes without effect: {}.", file, listed(unknown));
  }
  return config;
}

HfConfig read_hf_config(const std::filesystem::path& folder_or_json) {
  std::filesystem::path path = folder_or_json;
  if (std::filesystem::is_directory(path)) path /= "config.json";
  return parse_hf_config(read_file(path, size_t{16} << 20), path.string());
}

json make_hf_config(const ModelConfig& model, const json& original, DType dtype) {
  const Family& family = family_of(model.architecture);
  json document = original.is_object() ? original : json::object();
  if (document.empty() || read_model(document, "config.json") != model) {
    document["architectures"] = {family.name};
    document["model_type"] = family.model_type;
    document["vocab_size"] = model.vocabulary;
    document["hidden_size"] = model.hidden;
    document["intermediate_size"] = model.mlp;
    document["num_hidden_layers"] = model.layers;
    document["num_attention_heads"] = model.heads;
    document["num_key_value_heads"] = model.kv_heads;
    // Older transformers don't know head_dim for every family, so it is written only where it says something.
    const bool usual = family.head_dim == 0 && model.head_dim * model.heads == model.hidden;
    if (!usual || document.contains("head_dim")) document["head_dim"] = model.head_dim;
    document["max_position_embeddings"] = model.max_positions;
    document["hidden_act"] = "silu";
    document["rms_norm_eps"] = model.norm_epsilon;
    document["initializer_range"] = model.initializer_range;
    document["tie_word_embeddings"] = model.tied_embeddings;
    document["bos_token_id"] = model.bos ? json(*model.bos) : json();
    document["eos_token_id"] = eos_value(model);
    document.erase("attention_bias");
    put_rope(model, &document);
    put_window(model, &document);
    if (read_model(document, "config.json") != model) {
      fail_usage("model: {} can't express this model (biases {}, QK-norm {}, sliding window {} from layer {}).",
                 family.name, model.qkv_bias, model.qk_norm, model.sliding_window, model.first_sliding_layer);
    }
  }
  const char* name = dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
  document[document.contains("dtype") ? "dtype" : "torch_dtype"] = name;
  return document;
}

json make_generation_config(const ModelConfig& model) {
  json document = {{"_from_model_config", true}};
  if (model.bos) document["bos_token_id"] = *model.bos;
  if (!model.eos.empty()) document["eos_token_id"] = eos_value(model);
  return document;
}

}  // namespace yoke
