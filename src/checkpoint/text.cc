#include "checkpoint/text.h"

#include <algorithm>

#include "base/error.h"

namespace yoke {

std::string shown(std::string_view text) {
  constexpr size_t kMax = 100;
  std::string out = "'";
  for (const char c : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return out + (text.size() > kMax ? "...'" : "'");
}

std::string listed(const std::vector<std::string>& items) {
  constexpr size_t kMax = 20;
  std::string out;
  for (size_t i = 0; i < std::min(items.size(), kMax); ++i) out += (i ? ", " : "") + items[i];
  return items.size() > kMax ? fmt::format("{} and {} more", out, items.size() - kMax) : out;
}

std::string listed(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

}  // namespace yoke
