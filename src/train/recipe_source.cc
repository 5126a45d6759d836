#include "train/recipe_source.h"

#include <utf8proc.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

namespace yoke {

namespace {

bool is_utf8(std::string_view text) {
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t point;
    const utf8proc_ssize_t used = utf8proc_iterate(at, left, &point);
    if (used <= 0) return false;
    at += used;
    left -= used;
  }
  return true;
}

std::string_view leaf_of(std::string_view key) { return key.substr(key.find('.') + 1); }

/// yaml-cpp's message for `*.txt` speaks of an unknown anchor.
std::string yaml_reason(const YAML::Exception& error) {
  std::string reason = error.msg;
  if (reason.find("anchor") != std::string::npos || reason.find("alias") != std::string::npos) {
    reason += " (text that begins with * or & has to be quoted)";
  }
  return reason;
}

}  // namespace

RecipeSource::RecipeSource(std::string_view text, const std::string& name, const std::vector<RecipeOverride>& overrides,
                           const std::vector<std::string>& legal)
    : name_(name), legal_(legal) {
  std::replace_if(
      name_.begin(), name_.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  read_file(text);
  for (const RecipeOverride& override : overrides) set_override(override);
}

void RecipeSource::read_file(std::string_view text) {
  if (!is_utf8(text) || text.find('\0') != std::string_view::npos) {
    fail_usage("{}: is not UTF-8 text; a recipe is a YAML file.", name_);
  }
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(std::string(text));
  } catch (const YAML::Exception& error) {
    fail_usage("{}:{}:{}: is not YAML: {}.", name_, error.mark.line + 1, error.mark.column + 1, yaml_reason(error));
  }
  if (documents.size() > 1) fail_usage("{}: holds {} YAML documents; a recipe is one.", name_, documents.size());
  if (documents.empty() || documents[0].IsNull()) return;
  if (!documents[0].IsMap()) {
    fail_usage("{}: a recipe is a map of sections (model:, data:, train:, ...), and this is not one.", name_);
  }
  std::vector<std::string> seen;
  for (const auto& entry : documents[0]) {
    if (!entry.first.IsScalar()) fail_usage("{}: a key must be a word.", place(entry.first));
    const std::string& key = entry.first.Scalar();
    if (!is_section(key)) {
      add(key, entry.first, entry.second);
      continue;
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      fail_usage("{}: section {} is there twice; put its keys together.", place(entry.first), key);
    }
    seen.push_back(key);
    if (entry.second.IsNull()) continue;
    if (!entry.second.IsMap()) {
      fail_usage("{}: {} is a section; give its keys below it, indented, or as {{key: value, ...}}.",
                 place(entry.second), key);
    }
    read_section(key, entry.second);
  }
}

void RecipeSource::read_section(const std::string& section, const YAML::Node& node) {
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) fail_usage("{}: a key must be a word.", place(entry.first));
    add(section + "." + entry.first.Scalar(), entry.first, entry.second);
  }
}

void RecipeSource::add(const std::string& key, const YAML::Node& at, const YAML::Node& value) {
  if (std::find(legal_.begin(), legal_.end(), key) == legal_.end()) fail_unknown(place(at), key);
  const auto [existing, is_new] = values_.try_emplace(key, RecipeValue{key, value, place(value)});
  if (!is_new) fail_usage("{}: {} is there twice; it was set at {} before.", place(at), key, existing->second.place);
}

void RecipeSource::set_override(const RecipeOverride& override) {
  const std::string kPlace = "command line";
  if (!is_utf8(override.key) || !is_utf8(override.value)) {
    fail_usage("{}: --{} is not UTF-8 text.", kPlace, is_utf8(override.key) ? override.key : "?");
  }
  if (std::find(legal_.begin(), legal_.end(), override.key) == legal_.end()) fail_unknown(kPlace, override.key);
  RecipeValue value{override.key, YAML::Node(override.value), kPlace, true};
  if (!override.value.empty() && override.value[0] == '[') {
    try {
      value.node = YAML::Load(override.value);
    } catch (const YAML::Exception& error) {
      fail_usage("{}: --{} {} is not a YAML list: {}.", kPlace, override.key, override.value, yaml_reason(error));
    }
  }
  values_.insert_or_assign(override.key, value);
}

void RecipeSource::fail_unknown(const std::string& place, const std::string& key) const {
  constexpr size_t kLongestMistake = 80;
  std::string hint = key.size() > kLongestMistake ? "" : did_you_mean(key, legal_);
  const auto other = std::find_if(legal_.begin(), legal_.end(),
                                  [&](const std::string& name) { return leaf_of(name) == leaf_of(key); });
  if (other != legal_.end()) hint = fmt::format(" Did you mean '{}'?", *other);
  if (hint.empty()) {
    const std::string section = key.substr(0, key.find('.'));
    std::vector<std::string> siblings;
    for (const std::string& name : legal_) {
      if (is_section(section) ? name.starts_with(section + ".") : true) siblings.emplace_back(name);
    }
    hint = fmt::format(" Legal keys: {}.", fmt::join(siblings, ", "));
  }
  fail_usage("{}: {} is not a key of recipes.{}", place, printable(key), hint);
}

bool RecipeSource::is_section(std::string_view name) const {
  return std::any_of(legal_.begin(), legal_.end(), [&](const std::string& key) {
    return key.size() > name.size() && key.starts_with(name) && key[name.size()] == '.';
  });
}

std::string RecipeSource::place(const YAML::Node& node) const {
  return fmt::format("{}:{}:{}", name_, node.Mark().line + 1, node.Mark().column + 1);
}

const RecipeValue* RecipeSource::find(std::string_view key) const {
  const auto at = values_.find(key);
  return at == values_.end() ? nullptr : &at->second;
}

void RecipeSource::displace(const std::vector<std::string>& keys) {
  const bool typed = std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    const RecipeValue* value = find(key);
    return value != nullptr && value->from_command_line;
  });
  if (!typed) return;
  for (const std::string& key : keys) {
    const RecipeValue* value = find(key);
    if (value != nullptr && !value->from_command_line) values_.erase(key);
  }
}

RecipeOrigins RecipeSource::origins() const {
  RecipeOrigins origins;
  for (const auto& [key, value] : values_) origins.emplace(key, value.place);
  return origins;
}

}  // namespace yoke
