#include "train/recipe_rules.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace yoke {

namespace {

constexpr size_t kShown = 60;
constexpr size_t kMaxListItems = 100000;

std::string found(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return node.Scalar().empty() ? "empty" : "'" + printable(node.Scalar()) + "'";
    case YAML::NodeType::Sequence:
      return fmt::format("a list of {} values", node.size());
    case YAML::NodeType::Map:
      return "a map of keys";
    default:
      return "empty";
  }
}

/// mantissa * 10^exponent of a decimal number; false when `text` is none or needs more than 64 bits.
bool decimal(std::string_view text, int64_t& mantissa, int& exponent) {
  size_t at = 0;
  const bool negative = at < text.size() && text[at] == '-';
  if (negative || (at < text.size() && text[at] == '+')) ++at;
  mantissa = 0;
  exponent = 0;
  bool digits = false, point = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '.' && !point) {
      point = true;
    } else if (c >= '0' && c <= '9') {
      digits = true;
      if (__builtin_mul_overflow(mantissa, 10, &mantissa) || __builtin_add_overflow(mantissa, c - '0', &mantissa)) {
        return false;
      }
      exponent -= point ? 1 : 0;
    } else {
      break;
    }
  }
  if (negative) mantissa = -mantissa;
  if (!digits || at == text.size()) return digits;
  const char tail = text[at++];
  if (tail == 'e' || tail == 'E') {
    if (at < text.size() && text[at] == '+') ++at;
    int power = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), power);
    exponent += std::clamp(power, -100, 100);
    return error == std::errc() && end == text.data() + text.size();
  }
  const size_t suffix = std::string_view("kMGT").find(tail);
  if (suffix == std::string_view::npos || at != text.size()) return false;
  exponent += 3 * static_cast<int>(suffix + 1);
  return true;
}

/// False when `text` is not a whole number or needs more than 64 bits.
bool whole(std::string_view text, int64_t& number) {
  int exponent = 0;
  if (!decimal(text, number, exponent)) return false;
  for (; number != 0 && exponent > 0; --exponent) {
    if (__builtin_mul_overflow(number, 10, &number)) return false;
  }
  for (; number != 0 && exponent < 0; ++exponent) {
    if (number % 10 != 0) return false;
    number /= 10;
  }
  return true;
}

double read_real(const RecipeValue& value, const std::string& text, const Real& rule) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && std::isfinite(number);
  const bool above = number > rule.min || (rule.min_is_legal && number == rule.min);
  const bool below = number < rule.max || (rule.max_is_legal && number == rule.max);
  if (!is_number || !above || !below) fail_value(value);
  return number;
}

}  // namespace

std::string printable(const std::string& text) {
  std::string shown;
  for (const char c : text.substr(0, kShown)) shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text.size() > kShown ? shown + "..." : shown;
}

void fail_value(const RecipeValue& value, const std::string& hint) {
  fail_usage("{}: {} is {}; it must be {}.{}", value.place, value.key, found(value.node), value.legal, hint);
}

std::string scalar_text(const RecipeValue& value) {
  if (!value.node.IsScalar() || value.node.Scalar().empty()) fail_value(value);
  return value.node.Scalar();
}

std::vector<std::string> scalar_texts(const RecipeValue& value) {
  std::vector<std::string> texts;
  if (value.node.IsSequence()) {
    if (value.node.size() == 0 || value.node.size() > kMaxListItems) fail_value(value);
    for (const YAML::Node& item : value.node) {
      if (!item.IsScalar() || item.Scalar().empty()) fail_value(value);
      texts.push_back(item.Scalar());
    }
    return texts;
  }
  const std::string all = scalar_text(value);
  if (!value.from_command_line) return {all};
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find(',', begin), all.size());
    if (end == begin) fail_value(value);
    texts.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return texts;
}

std::string yaml_text(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  const bool reads_as_nothing = text == "null" || text == "Null" || text == "NULL";
  if (!text.empty() && text[0] != '-' && !reads_as_nothing && text.find_first_not_of(kPlain) == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", c);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string yaml_list(const std::vector<std::string>& texts) {
  std::vector<std::string> items;
  for (const std::string& text : texts) items.push_back(yaml_text(text));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string Whole::legal() const {
  if (max == INT64_MAX) return fmt::format("a whole number of at least {} (as 2000, 2k or 2e3)", min);
  return fmt::format("a whole number from {} to {}", min, max);
}

int64_t Whole::read(const RecipeValue& value) const {
  int64_t number = 0;
  if (!whole(scalar_text(value), number) || number < min || number > max) fail_value(value);
  return number;
}

int64_t Bytes::read(const RecipeValue& value) const {
  const std::string text = scalar_text(value);
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string_view unit = std::string_view(text).substr(digits);
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  constexpr std::string_view kUnits[2][5] = {{"B", "KB", "MB", "GB", "TB"}, {"", "KiB", "MiB", "GiB", "TiB"}};
  double factor = unit.empty() ? 1 : 0;
  for (const int binary : {0, 1}) {
    for (int power = 0; power < 5; ++power) {
      if (unit == kUnits[binary][power]) factor = std::pow(binary ? 1024.0 : 1000.0, power);
    }
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, number);
  const double bytes = number * factor;
  if (error != std::errc() || end != text.data() + digits || !(bytes >= 1 && bytes < 0x1p62)) fail_value(value);
  return static_cast<int64_t>(bytes);
}

std::string Real::legal() const {
  const std::string low = fmt::format("{} {}", min_is_legal ? "from" : "above", min);
  if (std::isinf(max)) return "a number " + low + (min_is_legal ? " up" : "");
  return fmt::format("a number {} {} {}", low, max_is_legal ? "to" : "to below", max);
}

double Real::read(const RecipeValue& value) const { return read_real(value, scalar_text(value), *this); }

bool Flag::read(const RecipeValue& value) const {
  const std::string text = scalar_text(value);
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  fail_value(value);
}

std::string Text::read(const RecipeValue& value) const {
  std::string text = scalar_text(value);
  if (text.find('\0') != std::string::npos) fail_value(value);
  return text;
}

std::vector<std::string> Texts::read(const RecipeValue& value) const {
  std::vector<std::string> texts = scalar_texts(value);
  for (const std::string& text : texts) {
    if (text.find('\0') != std::string::npos) fail_value(value);
  }
  return texts;
}

std::array<double, 2> RealPair::read(const RecipeValue& value) const {
  const std::vector<std::string> texts = scalar_texts(value);
  if (texts.size() != 2) fail_value(value);
  return {read_real(value, texts[0], each), read_real(value, texts[1], each)};
}

std::string RealPair::write(const std::array<double, 2>& value) const {
  return fmt::format("[{}, {}]", value[0], value[1]);
}

std::string FractionOrFiles::legal() const {
  return "none, a fraction of the training documents (from 0 to below 1), or files, globs and folders";
}

Validation FractionOrFiles::read(const RecipeValue& value) const {
  Validation validation;
  std::vector<std::string> texts = Texts{""}.read(value);
  if (value.node.IsScalar() && texts.size() == 1) {
    if (texts[0] == "none") return validation;
    double number = 0;
    const char* end = texts[0].data() + texts[0].size();
    const auto [stop, error] = std::from_chars(texts[0].data(), end, number);
    if (stop == end) {
      if (error != std::errc() || !(number >= 0 && number < 1)) fail_value(value);
      validation.fraction = number;
      return validation;
    }
  }
  validation.files = std::move(texts);
  return validation;
}

std::string FractionOrFiles::write(const Validation& value) const {
  if (!value.files.empty()) return yaml_list(value.files);
  return value.fraction > 0 ? fmt::format("{}", value.fraction) : "none";
}

}  // namespace yoke
