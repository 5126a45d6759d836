// Elements of SVG pictures.
#pragma once

#include <string>
#include <string_view>

namespace yoke::svg {

/// The document's beginning, on white; it ends with kEnd.
std::string begin(int width, int height);
inline constexpr const char* kEnd = "</svg>\n";
/// Text at a place; `anchor` is start, middle or end. What XML does not allow is escaped or left out.
std::string label(double x, double y, const char* anchor, int size, std::string_view text, const char* extra = "");
std::string line(double x1, double y1, double x2, double y2, const char* style);

}  // namespace yoke::svg
