#include "plan/memory_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/report.h"
#include "plan/svg.h"

namespace yoke {

using svg::label;
using svg::line;

namespace {

// All of the memory above, what comes and goes below it.
constexpr int kWidth = 1120, kHeight = 850, kLeft = 84, kRight = 800;
constexpr int kTop = 100, kBottom = 460, kZoomTop = 536, kZoomBottom = 736;
constexpr size_t kColumns = kRight - kLeft;
constexpr size_t kBands = kMemoryKinds + 1;  // what is outside the arena, then the kinds

struct Band {
  size_t index;  ///< 0: outside, else 1 + MemoryKind
  const char* colour;
};

constexpr size_t band_of(MemoryKind kind) { return 1 + static_cast<size_t>(kind); }

/// From the bottom up: what stays first, what comes and goes on top of it.
constexpr Band kStack[kBands] = {{0, "#8c8c8c"},
                                 {band_of(MemoryKind::weights), "#08306b"},
                                 {band_of(MemoryKind::master), "#2171b5"},
                                 {band_of(MemoryKind::moments), "#6baed6"},
                                 {band_of(MemoryKind::gradients), "#c6dbef"},
                                 {band_of(MemoryKind::batch), "#6a51a3"},
                                 {band_of(MemoryKind::saved), "#238b45"},
                                 {band_of(MemoryKind::loss), "#dd3497"},
                                 {band_of(MemoryKind::recomputed), "#74c476"},
                                 {band_of(MemoryKind::scratch), "#d9f0a3"},
                                 {band_of(MemoryKind::activation_gradients), "#fe9929"},
                                 {band_of(MemoryKind::workspace), "#cb181d"}};

using Bytes = std::array<double, kBands>;

double total(const Bytes& bytes) {
  double sum = 0;
  for (const double one : bytes) sum += one;
  return sum;
}

/// A stretch of columns in which one part of the step runs.
struct Stretch {
  std::string part;
  size_t begin = 0, end = 0;
};

/// The timeline in columns: of all states within a column the highest.
struct Columns {
  std::vector<Bytes> bytes{kColumns};
  std::vector<Stretch> stretches;
  size_t peak = 0;  ///< column
  Bytes at_peak{};  ///< what is alive there
};

Columns columns_of(const MemoryPlan& p) {
  const MemoryTimeline& timeline = p.plan.timeline;
  Columns columns;
  Bytes now{};
  for (const PlanLine& line : p.outside) now[0] += static_cast<double>(line.bytes);
  for (size_t k = 0; k < kMemoryKinds; ++k) now[k + 1] = static_cast<double>(timeline.before[k]);
  columns.at_peak = now;
  const auto count = static_cast<double>(timeline.events.size());
  size_t column = 0;
  columns.bytes[0] = now;
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    const MemoryEvent& event = timeline.events[i];
    const double place = timeline.seconds > 0 ? event.seconds / timeline.seconds : static_cast<double>(i) / count;
    const auto at = std::min(kColumns - 1, static_cast<size_t>(place * static_cast<double>(kColumns)));
    while (column < at) columns.bytes[++column] = now;
    now[band_of(event.kind)] += static_cast<double>(event.bytes);
    if (total(now) > total(columns.bytes[column])) columns.bytes[column] = now;
    if (total(now) > total(columns.at_peak)) {
      columns.at_peak = now;
      columns.peak = column;
    }
    const std::string_view stage = event.moment.stage;
    const std::string part(stage == "evaluation" ? stage : std::string_view(event.moment.part));
    std::vector<Stretch>& stretches = columns.stretches;
    if (stretches.empty() || stretches.back().part != part) {
      if (!stretches.empty()) stretches.back().end = column;
      stretches.push_back({part, stretches.empty() ? 0 : column, kColumns});
    }
  }
  while (++column < kColumns) columns.bytes[column] = now;
  return columns;
}

/// Without what stays for the whole step.
Columns changing_part(Columns columns) {
  for (size_t band = 0; band < kBands; ++band) {
    double least = INFINITY;
    for (const Bytes& bytes : columns.bytes) least = std::min(least, bytes[band]);
    for (Bytes& bytes : columns.bytes) bytes[band] -= least;
    columns.at_peak[band] -= least;
  }
  return columns;
}

/// The vertical axis of a plot between two heights: its unit, its top, and the distance between two ticks (1, 2 or 5
/// times a power of ten).
struct Axis {
  Axis(double highest, int above, int below, int ticks)
      : above(above), below(below), unit(highest >= 0x1p30 ? 0x1p30 : 0x1p20), top(1.08 * highest) {
    const double rough = top / unit / ticks, power = std::pow(10, std::floor(std::log10(rough)));
    tick = (rough / power > 5 ? 10 : rough / power > 2 ? 5 : rough / power > 1 ? 2 : 1) * power;
  }
  double y(double bytes) const { return below - bytes / top * (below - above); }

  int above, below;
  double unit, top, tick = 1;  ///< tick in units
};

std::string axes(const Axis& axis, const Columns& columns) {
  std::string svg;
  for (double value = 0; value * axis.unit < axis.top; value += axis.tick) {
    const double y = axis.y(value * axis.unit);
    svg += line(kLeft, y, kRight, y, "stroke=\"#e4e4e4\"");
    svg += label(kLeft - 8, y + 4, "end", 12, fmt::format("{:.6g}", value));
  }
  const double middle = (axis.above + axis.below) / 2.0;
  svg += label(26, middle, "middle", 13, axis.unit == 0x1p30 ? "GiB" : "MiB",
               fmt::format("transform=\"rotate(-90 26 {})\"", middle).c_str());
  for (const Stretch& s : columns.stretches) {
    const double x = kLeft + static_cast<double>(s.begin), width = static_cast<double>(s.end - s.begin);
    if (s.begin > 0) svg += line(x, axis.above, x, axis.below + 22, "stroke=\"#b0b0b0\" stroke-dasharray=\"2 3\"");
    if (width > 7.0 * static_cast<double>(s.part.size())) {
      svg += label(x + width / 2, axis.below + 17, "middle", 12, s.part);
    }
  }
  return svg + line(kLeft, axis.below, kRight, axis.below, "stroke=\"#404040\"") +
         line(kLeft, axis.above, kLeft, axis.below, "stroke=\"#404040\"");
}

/// The area between `lower` and `upper`, bytes by column.
std::string area(const Axis& axis, const std::vector<double>& lower, const std::vector<double>& upper,
                 const char* colour) {
  std::string forth, back;
  for (size_t i = 0; i < kColumns; ++i) {
    const bool changes = i == 0 || i + 1 == kColumns || lower[i] != lower[i - 1] || upper[i] != upper[i - 1] ||
                         lower[i] != lower[i + 1] || upper[i] != upper[i + 1];
    if (!changes) continue;
    const size_t left = kLeft + i, right = left + 1;
    forth += fmt::format("{}{} {:.2f}L{} {:.2f}", forth.empty() ? "M" : "L", left, axis.y(upper[i]), right,
                         axis.y(upper[i]));
    back = fmt::format("L{} {:.2f}L{} {:.2f}", right, axis.y(lower[i]), left, axis.y(lower[i])) + back;
  }
  return fmt::format("<path fill=\"{}\" d=\"{}{}Z\"/>\n", colour, forth, back);
}

std::string areas(const Axis& axis, const Columns& columns) {
  std::string svg;
  std::vector<double> lower(kColumns, 0), upper(kColumns, 0);
  for (const Band& band : kStack) {
    double most = 0;
    for (size_t i = 0; i < kColumns; ++i) {
      upper[i] = lower[i] + columns.bytes[i][band.index];
      most = std::max(most, columns.bytes[i][band.index]);
    }
    if (most > 0) svg += area(axis, lower, upper, band.colour);
    lower = upper;
  }
  return svg;
}

std::string legend(const Columns& columns) {
  std::string svg = label(kRight + 24, kTop + 8, "start", 13, "at the peak", "font-weight=\"bold\"");
  double y = kTop + 34;
  for (size_t i = kBands; i-- > 0;) {
    const Band& band = kStack[i];
    double most = 0;
    for (const Bytes& bytes : columns.bytes) most = std::max(most, bytes[band.index]);
    if (most == 0) continue;
    const std::string_view name = band.index == 0 ? "outside the arena" : kMemoryKindNames[band.index - 1];
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", kRight + 24, y - 12,
                       band.colour);
    svg += label(kRight + 46, y, "start", 12, name);
    svg += label(kWidth - 20, y, "end", 12, bytes_text(static_cast<size_t>(columns.at_peak[band.index])));
    y += 24;
  }
  svg += line(kRight + 24, y - 12, kWidth - 20, y - 12, "stroke=\"#404040\"");
  svg += label(kRight + 46, y + 6, "start", 12, "all", "font-weight=\"bold\"");
  return svg + label(kWidth - 20, y + 6, "end", 12, bytes_text(static_cast<size_t>(total(columns.at_peak))),
                     "font-weight=\"bold\"");
}

/// A ring around the peak, named above the plot.
std::string peak_mark(const Axis& axis, const Columns& columns, const std::string& text) {
  const double x = kLeft + static_cast<double>(columns.peak) + 0.5, y = axis.y(total(columns.at_peak));
  return line(x, axis.above - 6, x, y - 5, "stroke=\"#000000\"") +
         fmt::format(
             "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"none\" stroke=\"#000000\" stroke-width=\"2\"/>\n", x,
             y) +
         label(x, axis.above - 11,
               columns.peak < kColumns / 4       ? "start"
               : columns.peak > kColumns * 3 / 4 ? "end"
                                                 : "middle",
               12, text);
}

std::string capacity_mark(const Axis& axis, size_t capacity) {
  const double y = axis.y(static_cast<double>(capacity));
  const std::string text = "capacity " + bytes_text(capacity);
  return line(kLeft, y, kRight, y, "stroke=\"#000000\" stroke-width=\"2\" stroke-dasharray=\"8 4\"") +
         label(kRight - 6, y - 6, "end", 12, text,
               "font-weight=\"bold\" stroke=\"#ffffff\" stroke-width=\"4\" stroke-linejoin=\"round\"") +
         label(kRight - 6, y - 6, "end", 12, text, "font-weight=\"bold\"");
}

/// What the picture does not say by itself, one line each.
std::vector<std::string> notes(const MemoryPlan& p, bool capacity_shown) {
  std::vector<std::string> lines{
      p.plan.timeline.seconds > 0
          ? fmt::format("Left to right: time at peak rates, {:.3g} s in all, an evaluation of one "
                        "micro-batch included.",
                        p.plan.timeline.seconds)
          : "Left to right: the order of allocations; the time is unknown."};
  if (p.engine.micro_batches > 2) {
    lines.push_back(fmt::format("Micro-batches 3 to {} repeat the second and are not drawn.", p.engine.micro_batches));
  }
  if (!capacity_shown)
    lines.push_back(fmt::format("The capacity of {} lies above the picture.", bytes_text(p.capacity)));
  return lines;
}

}  // namespace

std::string memory_picture(const MemoryPlan& p) {
  const Columns columns = columns_of(p), changing = changing_part(columns);
  const double peak = total(columns.at_peak);
  const auto capacity = static_cast<double>(p.capacity);
  const bool capacity_shown = capacity < 2 * peak;
  const Axis axis(capacity_shown ? std::max(peak, capacity) : peak, kTop, kBottom, 7);
  const Axis zoom(total(changing.at_peak), kZoomTop, kZoomBottom, 4);
  const EngineOptions& e = p.engine;
  std::string svg = svg::begin(kWidth, kHeight);
  svg += label(kLeft, 34, "start", 18, fmt::format("Memory over one step: {}", p.model), "font-weight=\"bold\"");
  svg += label(kLeft, 58, "start", 13,
               fmt::format("{} on {}, {} micro-batch{} of {} x {} tokens; {} of {}: {}", name_of(e.compute), p.device,
                           e.micro_batches, e.micro_batches == 1 ? "" : "es", e.micro_batch, e.sequence_length,
                           bytes_text(p.needed()), bytes_text(p.capacity), p.fits() ? "fits" : "does not fit"));
  svg += axes(axis, columns) + areas(axis, columns) + legend(columns);
  if (capacity_shown) svg += capacity_mark(axis, p.capacity);
  svg += peak_mark(axis, columns, "peak: " + p.plan.peak_text());
  svg += label(kLeft, kZoomTop - 12, "start", 13, "What comes and goes", "font-weight=\"bold\"");
  svg += axes(zoom, changing) + areas(zoom, changing);
  int y = kZoomBottom + 48;
  for (const std::string& note : notes(p, capacity_shown)) {
    svg += label(kLeft, y, "start", 12, note);
    y += 20;
  }
  return svg + svg::kEnd;
}

}  // namespace yoke
