#include "checkpoint/hf_fields.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace yoke {

namespace {

using std::string_view;

constexpr string_view kHandled[] = {
    "architectures",       "attention_bias",          "bos_token_id",      "eos_token_id",        "head_dim",
    "hidden_size",         "initializer_range",       "intermediate_size", "layer_types",         "max_window_layers",
    "model_type",          "max_position_embeddings", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "rms_norm_eps",        "rope_parameters",         "rope_scaling",      "rope_theta",          "sliding_window",
    "tie_word_embeddings", "use_sliding_window",      "vocab_size",
};

// Bookkeeping, what generation does by default, and what only other programs' code paths read.
constexpr string_view kHarmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_sequence_length",
    "min_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

struct Fixed {
  string_view name;
  string_view legal;  ///< JSON list; null is always legal
};

constexpr Fixed kFixed[] = {
    {"add_cross_attention", "[false]"},
    {"alibi", "[false]"},
    {"attention_chunk_size", "[]"},
    {"attention_dropout", "[0]"},
    {"attention_multiplier", "[]"},
    {"attn_logit_softcapping", "[]"},
    {"attn_pdrop", "[0]"},
    {"attn_temperature_tuning", "[false, 0]"},
    {"auto_map", "[{}]"},
    {"clip_qkv", "[]"},
    {"cross_attention_hidden_size", "[]"},
    {"dropout", "[0]"},
    {"embd_pdrop", "[0]"},
    {"embedding_multiplier", "[1]"},
    {"final_logit_softcapping", "[]"},
    {"hidden_act", R"(["silu", "swish"])"},
    {"hidden_activation", R"(["silu", "swish"])"},
    {"hidden_dropout", "[0]"},
    {"hidden_dropout_prob", "[0]"},
    {"is_encoder_decoder", "[false]"},
    {"logit_scale", "[1]"},
    {"logits_scaling", "[1]"},
    {"mlp_bias", "[false]"},
    {"n_routed_experts", "[0]"},
    {"no_rope_layer_interval", "[]"},
    {"no_rope_layers", "[[]]"},
    {"num_experts", "[0]"},
    {"num_local_experts", "[0]"},
    {"num_nextn_predict_layers", "[0]"},
    {"original_max_position_embeddings", "[]"},
    {"partial_rotary_factor", "[1]"},
    {"pretraining_tp", "[1]"},
    {"pruned_heads", "[{}]"},
    {"quantization_config", "[{}]"},
    {"query_pre_attn_scalar", "[]"},
    {"resid_pdrop", "[0]"},
    {"residual_multiplier", "[1]"},
    {"rope_interleaved", "[false]"},
    {"rotary_pct", "[1]"},
    {"use_mrope", "[false]"},
    {"use_parallel_residual", "[false]"},
};

// Parts of names that speak of the model's mathematics.
constexpr string_view kTelling[] = {
    "act_fn", "activation", "alibi",  "attention", "attn",     "bias",     "cap",    "clip",   "conv",  "dropout",
    "expert", "gate",       "head",   "hidden",    "init",     "kv",       "layer",  "lora",   "mlp",   "moe",
    "mtp",    "multiplier", "mup",    "norm",      "parallel", "position", "prune",  "qk",     "quant", "residual",
    "rope",   "rotary",     "router", "scal",      "sink",     "softcap",  "sparse", "window",
};

bool contains(const auto& names, string_view name) { return std::ranges::find(names, name) != std::end(names); }

bool turns_nothing_on(const nlohmann::json& value) {
  return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

}  // namespace

FieldVerdict judge_field(std::string_view name, const nlohmann::json& value) {
  if (contains(kHandled, name)) return {.kind = FieldKind::handled};
  if (contains(kHarmless, name)) return {.kind = FieldKind::harmless};
  const auto* fixed = std::ranges::find(kFixed, name, &Fixed::name);
  if (fixed != std::end(kFixed)) {
    FieldVerdict verdict{.kind = FieldKind::fixed};
    const auto legal = nlohmann::json::parse(fixed->legal);
    verdict.legal = value.is_null() || std::ranges::find(legal, value) != legal.end();
    for (const auto& item : legal) verdict.legal_values += item.dump() + " or ";
    verdict.legal_values += "null";
    return verdict;
  }
  if (turns_nothing_on(value)) return {.kind = FieldKind::harmless};
  const bool telling = std::ranges::any_of(kTelling, [&](string_view part) { return name.find(part) != name.npos; });
  return {.kind = telling ? FieldKind::suspicious : FieldKind::unknown};
}

}  // namespace yoke
