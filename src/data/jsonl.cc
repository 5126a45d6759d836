#include "data/jsonl.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/text.h"

namespace yoke {

namespace {

/// Picks the top level's "text" out of a stream of JSON events; builds no tree.
class TextField : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool found() const { return kind_ == Kind::string; }
  std::string& text() { return text_; }
  const std::string& problem() const { return problem_; }
  std::string missing() const {
    if (!is_object_) return "is not a JSON object";
    if (kind_ != Kind::none) return "has a \"text\" that is not a string";
    return keys_.empty() ? "has no \"text\" field" : "has no \"text\" field (it has " + keys_ + ")";
  }

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool string(string_t& value) override {
    if (depth_ == 1 && expected_) {
      text_ = std::move(value);
      kind_ = Kind::string;
    }
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 0) is_object_ = true;
    return open();
  }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    expected_ = name == "text";
    if (keys_.size() + name.size() < 100) keys_.append(keys_.empty() ? "" : ", ").append(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    problem_ = error.what();
    return false;
  }

 private:
  enum class Kind : uint8_t { none, string, other };

  bool other() {
    if (depth_ == 1 && expected_) kind_ = Kind::other;
    return true;
  }
  bool open() {
    other();
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  int64_t depth_ = 0;
  bool is_object_ = false;
  bool expected_ = false;  ///< the key just read is "text"
  Kind kind_ = Kind::none;
  std::string text_;
  std::string problem_;
  std::string keys_;  ///< the top level's first keys, for the message
};

/// nlohmann's message without its error number, and with its quotation of the input cut short.
std::string shortened(std::string message) {
  constexpr size_t kLongest = 200;
  if (const size_t end = message.find("] "); message.starts_with('[') && end != std::string::npos)
    message.erase(0, end + 2);
  if (message.size() > kLongest) {
    size_t cut = kLongest;
    while (cut > 0 && (static_cast<uint8_t>(message[cut]) & 0xc0u) == 0x80u) --cut;
    message = message.substr(0, cut) + "...";
  }
  return message;
}

}  // namespace

void for_each_text(std::string_view lines, const std::string& file, int64_t first_line,
                   const std::function<void(const std::string& text)>& document) {
  for (int64_t number = first_line; !lines.empty(); ++number) {
    const size_t end = lines.find('\n');
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;

    const std::string where = fmt::format("{}:{}", file, number);
    check_utf8(line, where, 0);
    TextField field;
    if (!nlohmann::json::sax_parse(line, &field))
      fail_file("{}: is not JSON: {}. Each line must be an object such as {{\"text\": \"...\"}}.", where,
                shortened(field.problem()));
    if (!field.found())
      fail_file("{}: {}; each line must be an object such as {{\"text\": \"...\"}}.", where, field.missing());
    document(field.text());
  }
}

}  // namespace yoke
