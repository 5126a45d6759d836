#include "plan/svg.h"

#include <fmt/format.h>

namespace yoke::svg {

namespace {

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {  // no other control character is legal in XML
      safe += c;
    }
  }
  return safe;
}

}  // namespace

std::string begin(int width, int height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" fill=\"#202020\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      width, height);
}

std::string label(double x, double y, const char* anchor, int size, std::string_view text, const char* extra) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" {}>{}</text>\n", x, y, anchor,
                     size, extra, escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

}  // namespace yoke::svg
