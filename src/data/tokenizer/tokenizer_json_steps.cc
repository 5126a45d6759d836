#include "data/tokenizer/tokenizer_json_steps.h"

#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

/// GPT-2's way to cut words, which ByteLevel applies by itself.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// Runs of word characters and runs of what is neither those nor space.
constexpr std::string_view kWhitespacePattern =
    R"([\p{Alphabetic}\w\p{M}\p{Nl}\x{200c}\x{200d}]+|[^\p{Alphabetic}\w\p{M}\p{Nl}\x{200c}\x{200d}\s]+)";

/// {"Regex": ".."} or {"String": ".."}.
Regex read_pattern(const JsonView& view) {
  view.allow_keys({"Regex", "String"});
  if (view.object().size() != 1) view.fail("either 'Regex' or 'String' is expected.");
  if (view.has("Regex")) return Regex(view.text("Regex"), view.where());
  return Regex(escape_pattern(view.text("String")), view.where());
}

SplitBehavior read_behavior(const JsonView& view) {
  const std::string& name = view.text();
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  view.fail("'{}' is no split behavior; Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous are.",
            name);
}

size_t read_count(const JsonView& view, std::string_view key) {
  return static_cast<size_t>(view.integer(key, 0, INT32_MAX));
}

/// "replacement" of Metaspace, one character.
const std::string& read_replacement(const JsonView& view) {
  const std::string& text = view.text("replacement");
  if (text.empty() || utf8_length(text[0]) != text.size()) view.fail("'replacement' must be one character.");
  return text;
}

Metaspace::Prepend read_prepend_scheme(const JsonView& view) {
  if (!view.has("prepend_scheme")) {
    return view.flag("add_prefix_space", true) ? Metaspace::Prepend::always : Metaspace::Prepend::never;
  }
  const std::string& name = view.text("prepend_scheme");
  if (name == "always") return Metaspace::Prepend::always;
  if (name == "first") return Metaspace::Prepend::first;
  if (name == "never") return Metaspace::Prepend::never;
  view.at("prepend_scheme").fail("is '{}'; always, first and never are known.", name);
}

}  // namespace

void read_normalizer(const JsonView& view, std::vector<NormalizerStep>& steps) {
  using Form = UnicodeForm::Form;
  const std::string& type = view.text("type");
  if (type == "Sequence") {
    view.allow_keys({"type", "normalizers"});
    for (const JsonView& member : view.at("normalizers").items()) read_normalizer(member, steps);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    view.allow_keys({"type"});
    const bool composed = type.back() == 'C', compatible = type.size() == 4;
    steps.emplace_back(UnicodeForm{composed     ? (compatible ? Form::nfkc : Form::nfc)
                                   : compatible ? Form::nfkd
                                                : Form::nfd});
  } else if (type == "Lowercase") {
    view.allow_keys({"type"});
    steps.emplace_back(Lowercase{});
  } else if (type == "Prepend") {
    view.allow_keys({"type", "prepend"});
    steps.emplace_back(Prepend{view.text("prepend")});
  } else if (type == "Replace") {
    view.allow_keys({"type", "pattern", "content"});
    steps.emplace_back(ReplaceAll{read_pattern(view.at("pattern")), view.text("content")});
  } else if (type == "Strip") {
    view.allow_keys({"type", "strip_left", "strip_right"});
    steps.emplace_back(StripSpace{view.flag("strip_left"), view.flag("strip_right")});
  } else {
    view.fail(
        "the normalizer '{}' is not supported; NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and "
        "Sequence are.",
        type);
  }
}

void read_pre_tokenizer(const JsonView& view, std::vector<PreTokenizerStep>& steps) {
  const std::string& type = view.text("type");
  if (type == "Sequence") {
    view.allow_keys({"type", "pretokenizers"});
    for (const JsonView& member : view.at("pretokenizers").items()) read_pre_tokenizer(member, steps);
  } else if (type == "Split") {
    view.allow_keys({"type", "pattern", "behavior", "invert"});
    steps.emplace_back(
        Split{read_pattern(view.at("pattern")), read_behavior(view.at("behavior")), view.flag("invert")});
  } else if (type == "ByteLevel") {
    view.allow_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (view.flag("add_prefix_space")) steps.emplace_back(PrefixSpace{});
    if (view.flag("use_regex", true))
      steps.emplace_back(Split{Regex(kByteLevelPattern, "ByteLevel"), SplitBehavior::isolated});
    steps.emplace_back(MapBytes{});
  } else if (type == "Digits") {
    view.allow_keys({"type", "individual_digits"});
    steps.emplace_back(Split{Regex(R"(\p{N})", "Digits"),
                             view.flag("individual_digits") ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else if (type == "Whitespace") {
    view.allow_keys({"type"});
    steps.emplace_back(Split{Regex(kWhitespacePattern, "Whitespace"), SplitBehavior::removed, true});
  } else if (type == "WhitespaceSplit") {
    view.allow_keys({"type"});
    steps.emplace_back(Split{Regex(R"(\s)", "WhitespaceSplit"), SplitBehavior::removed});
  } else if (type == "Metaspace") {
    view.allow_keys({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
    const std::string& replacement = read_replacement(view);
    steps.emplace_back(Metaspace{replacement, read_prepend_scheme(view)});
    if (view.flag("split", true)) {
      steps.emplace_back(Split{Regex(escape_pattern(replacement), view.where()), SplitBehavior::merged_with_next});
    }
  } else {
    view.fail(
        "the pre-tokenizer '{}' is not supported; Split, ByteLevel, Digits, Metaspace, Whitespace, "
        "WhitespaceSplit and Sequence are.",
        type);
  }
}

void read_decoder(const JsonView& view, std::vector<DecoderStep>& steps) {
  const std::string& type = view.text("type");
  if (type == "Sequence") {
    for (const JsonView& member : view.at("decoders").items()) read_decoder(member, steps);
  } else if (type == "ByteLevel") {
    steps.emplace_back(DecodeByteLevel{});
  } else if (type == "ByteFallback") {
    steps.emplace_back(DecodeByteFallback{});
  } else if (type == "Fuse") {
    steps.emplace_back(DecodeFuse{});
  } else if (type == "Strip") {
    steps.emplace_back(DecodeStrip{view.text("content"), read_count(view, "start"), read_count(view, "stop")});
  } else if (type == "Replace") {
    steps.emplace_back(DecodeReplace{read_pattern(view.at("pattern")), view.text("content")});
  } else if (type == "Metaspace") {
    steps.emplace_back(DecodeMetaspace{read_replacement(view), read_prepend_scheme(view) != Metaspace::Prepend::never});
  } else {
    view.fail(
        "the decoder '{}' is not supported; ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace and "
        "Sequence are.",
        type);
  }
}

}  // namespace yoke
