// Pieces of messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

/// `text` fit for a message: in single quotes, control and non-ASCII bytes as \xNN, cut after 100 bytes.
std::string shown(std::string_view text);

/// "a, b, c and 7 more": at most 20 items are spelled out.
std::string listed(const std::vector<std::string>& items);

/// "[2, 3]"
std::string listed(const std::vector<int64_t>& shape);

}  // namespace yoke
