#include "checkpoint/json.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "checkpoint/text.h"

namespace yoke {

namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr int kMaxDepth = 64;

/// The library's message without its "[json.exception.parse_error.101] ".
std::string reason_of(const nlohmann::json::exception& error) {
  std::string_view text = error.what();
  if (const size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
  std::string text_shown = shown(text);
  return text_shown.substr(1, text_shown.size() - 2);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view file) {
  using nlohmann::json;
  if (text.size() > kMaxBytes) {
    fail_file("{}: is {} bytes long; at most {} are legal for a JSON file of this kind.", file, text.size(), kMaxBytes);
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) fail_file("{}: nests deeper than {} levels, which no such file does.", file, kMaxDepth);
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        fail_file("{}: has the key {} twice in one object; keep one of them.", file, shown(key));
      }
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    fail_file("{}: is not valid JSON: {}.", file, reason_of(error));
  }
}

}  // namespace yoke
