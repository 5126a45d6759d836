#include "base/error.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace yoke {

void assertion_failed(const char* condition, const char* file, int line, const std::string& message) {
  fmt::print(stderr, "yoke: internal error at {}:{}: {} is false{}{}\nThis is a bug in yoke; please report it.\n", file,
             line, condition, message.empty() ? "" : ": ", message);
  std::fflush(stderr);
  std::abort();
}

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view wrong, const std::vector<std::string>& legal) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, wrong.size() / 3) + 1;
  for (const std::string& name : legal) {
    const size_t distance = edit_distance(wrong, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view wrong, const std::vector<std::string>& legal) {
  const std::string best = nearest_name(wrong, legal);
  return best.empty() ? "" : fmt::format(" Did you mean '{}'?", best);
}

}  // namespace yoke
