#include "data/tokenizer/json_view.h"

#include <algorithm>

namespace yoke {

namespace {

constexpr int kMaxDepth = 64;

void check_depth(std::string_view text, const std::filesystem::path& path) {
  int depth = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) fail_file("{}: is nested more than {} levels deep.", path.string(), kMaxDepth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path) {
  check_depth(text, path);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    // The library's message starts with its own tag: "[json.exception.parse_error.101] ".
    std::string message = error.what();
    if (const size_t tag = message.find("] "); tag != message.npos) message.erase(0, tag + 2);
    fail_file("{}: is not valid JSON: {}.", path.string(), message);
  }
}

bool JsonView::has(std::string_view key) const {
  const auto found = object().find(key);
  return found != object().end() && !found->is_null();
}

JsonView JsonView::at(std::string_view key) const {
  const auto found = object().find(key);
  if (found == object().end()) fail("'{}' is missing.", key);
  return child(*found, key);
}

JsonView JsonView::child(const nlohmann::json& value, std::string_view key) const {
  return {value, file_, place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key)};
}

std::vector<JsonView> JsonView::items() const {
  std::vector<JsonView> views;
  for (size_t i = 0; i < array().size(); ++i) views.emplace_back(array()[i], file_, fmt::format("{}[{}]", place_, i));
  return views;
}

const std::string& JsonView::text() const {
  if (!value_->is_string()) fail("is of type {}; a string is expected.", value_->type_name());
  return value_->get_ref<const std::string&>();
}

bool JsonView::flag(std::string_view key) const {
  const JsonView view = at(key);
  if (!view.value_->is_boolean()) view.fail("is of type {}; true or false is expected.", view.value_->type_name());
  return view.value_->get<bool>();
}

int64_t JsonView::integer(std::string_view key, int64_t low, int64_t high) const {
  const JsonView view = at(key);
  const bool fits = view.value_->is_number_integer() &&
                    (!view.value_->is_number_unsigned() || view.value_->get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits || view.value_->get<int64_t>() < low || view.value_->get<int64_t>() > high) {
    view.fail("is {}; an integer from {} to {} is expected.",
              view.value_->is_number() ? view.value_->dump() : "no number", low, high);
  }
  return view.value_->get<int64_t>();
}

const nlohmann::json& JsonView::object() const {
  if (!value_->is_object()) fail("is of type {}; an object is expected.", value_->type_name());
  return *value_;
}

const nlohmann::json& JsonView::array() const {
  if (!value_->is_array()) fail("is of type {}; an array is expected.", value_->type_name());
  return *value_;
}

void JsonView::allow_keys(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : object().items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail("the key '{}' is not supported; known are {}.", key, fmt::join(known, ", "));
    }
  }
}

}  // namespace yoke
