// Reading JSON that may be malformed or hostile: every mistake is a UserError (bad_file) that names its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace yoke {

/// Parses `text`, which was read from `path`. Nesting is bounded; a syntax error names its position.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path);

/// A value and the place where it stands ("tokenizer.json: pre_tokenizer.pretokenizers[1]"). Refers to the document.
class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string file, std::string place = {})
      : value_(&value), file_(std::move(file)), place_(std::move(place)) {}

  const nlohmann::json& value() const { return *value_; }
  /// The file, and the place in it.
  std::string where() const { return place_.empty() ? file_ : file_ + ": " + place_; }
  /// A view of another value, said to stand at `key` of this one.
  JsonView child(const nlohmann::json& value, std::string_view key) const;

  /// Whether the object has `key` with a value other than null.
  bool has(std::string_view key) const;
  JsonView at(std::string_view key) const;
  std::vector<JsonView> items() const;

  const std::string& text() const;
  const std::string& text(std::string_view key) const { return at(key).text(); }
  bool flag(std::string_view key) const;
  bool flag(std::string_view key, bool otherwise) const { return has(key) ? flag(key) : otherwise; }
  int64_t integer(std::string_view key, int64_t low, int64_t high) const;

  const nlohmann::json& object() const;
  const nlohmann::json& array() const;
  /// A key that isn't among `known` might change the result: it is refused by name.
  void allow_keys(std::initializer_list<std::string_view> known) const;

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_file("{}: {}", where(), fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const nlohmann::json* value_;
  std::string file_, place_;
};

}  // namespace yoke
