// Hugging Face's config.json for LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM.
//
// A field is one of four kinds. Handled: it becomes part of ModelConfig; where it is absent, the default is the one
// that transformers has for that family. Fixed: it changes the mathematics in a way that yoke doesn't have, so it must
// be absent or have the value that turns it off. Harmless: known not to touch the mathematics. Unknown: null, false,
// "", [] and {} can't turn anything on and pass; of the others, those whose name speaks of a part of the model (norm,
// rope, bias, scale, ...) are errors, and the rest are named in one warning. Fields that aren't handled are kept in
// `document` and written back.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/dtype.h"
#include "model/config.h"

namespace yoke {

struct HfConfig {
  ModelConfig model;        ///< validated
  nlohmann::json document;  ///< the whole config.json
};

/// `file` is the name that messages use. UserError (bad_file) that names the field, what was found and what is legal.
HfConfig parse_hf_config(std::string_view text, std::string_view file);

/// A config.json, or a folder that has one.
HfConfig read_hf_config(const std::filesystem::path& folder_or_json);

/// The config.json of `model` with weights of `dtype`. `original` is the document that it was read from, or null: a
/// model that still says the same keeps its spelling, and fields that yoke doesn't use are carried along. UserError
/// (usage) when the architecture has no field for what `model` asks.
nlohmann::json make_hf_config(const ModelConfig& model, const nlohmann::json& original, DType dtype);

/// The token ids that generation starts and stops with.
nlohmann::json make_generation_config(const ModelConfig& model);

}  // namespace yoke
