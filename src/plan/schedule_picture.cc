#include "plan/schedule_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "plan/svg.h"

namespace yoke {

namespace {

constexpr int kWidth = 1120, kLeft = 84, kRight = 1020, kTop = 96, kRow = 34, kBox = 26;

struct Style {
  const char* name;
  const char* colour;
  const char* later;  ///< of odd pieces
  const char* text;
};

/// By PipelineWork.
constexpr Style kStyles[] = {{"forward", "#2171b5", "#6baed6", "#ffffff"},
                             {"backward", "#238b45", "#74c476", "#ffffff"},
                             {"backward, input gradients", "#238b45", "#74c476", "#ffffff"},
                             {"backward, weight gradients", "#fdae6b", "#fdd0a2", "#202020"}};

std::string box(double x, double y, double width, const char* colour) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#ffffff\" "
      "stroke-width=\"0.5\"/>\n",
      x, y, width, kBox, colour);
}

}  // namespace

std::string schedule_picture(const PipelineTimeline& timeline, const std::string& title, const std::string& unit) {
  const int bottom = kTop + kRow * timeline.shape.ranks;
  const double scale = (kRight - kLeft) / timeline.seconds;
  std::string picture = svg::begin(kWidth, bottom + 84);
  picture += svg::label(kLeft, 34, "start", 18, title, "font-weight=\"bold\"");
  picture += svg::label(kLeft, 58, "start", 13,
                        fmt::format("{} ranks, {} stages, {} micro-batches; {:.1f} % of the time of all ranks is idle",
                                    timeline.shape.ranks, timeline.shape.stages(), timeline.shape.micro_batches,
                                    100 * timeline.idle_share()));
  picture += svg::label(kWidth - 20, kTop - 10, "end", 12, "idle");
  std::set<PipelineWork> used;
  for (int rank = 0; rank < timeline.shape.ranks; ++rank) {
    const double y = kTop + kRow * rank;
    picture += svg::label(kLeft - 10, y + 18, "end", 12, fmt::format("rank {}", rank));
    picture += box(kLeft, y, kRight - kLeft, "#eeeeee");
    for (const PipelineSpan& span : timeline.ranks[static_cast<size_t>(rank)]) {
      const double x = kLeft + span.begin * scale, width = (span.end - span.begin) * scale;
      const Style& style = kStyles[static_cast<size_t>(span.action.work)];
      const std::string number = std::to_string(span.action.micro_batch);
      const bool odd = timeline.shape.piece_of(span.action.stage) % 2 == 1;
      picture += box(x, y, width, odd ? style.later : style.colour);
      if (width > 7.0 * static_cast<double>(number.size()) + 2) {
        picture +=
            svg::label(x + width / 2, y + 17, "middle", 11, number, fmt::format("fill=\"{}\"", style.text).c_str());
      }
      used.insert(span.action.work);
    }
    picture += svg::label(kWidth - 20, y + 18, "end", 12, fmt::format("{:.1f} %", 100 * timeline.idle_share(rank)));
  }
  picture += svg::line(kLeft, bottom + 4, kRight, bottom + 4, "stroke=\"#404040\"");
  picture += svg::label(kLeft, bottom + 22, "start", 12, "0");
  if (!unit.empty()) {
    picture += svg::label(kRight, bottom + 22, "end", 12, fmt::format("{:.3g} {}", timeline.seconds, unit));
  }
  double x = kLeft;
  for (const PipelineWork work : used) {
    const Style& style = kStyles[static_cast<size_t>(work)];
    picture += fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x, bottom + 42,
                           style.colour);
    picture += svg::label(x + 20, bottom + 54, "start", 12, style.name);
    x += 44 + 7.0 * static_cast<double>(std::string_view(style.name).size());
  }
  if (timeline.shape.pieces > 1)
    picture += svg::label(x, bottom + 54, "start", 12, "lighter: every other piece of a rank");
  return picture + svg::kEnd;
}

}  // namespace yoke
