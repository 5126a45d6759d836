#include "monitor/progress.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace yoke {

namespace {

constexpr std::chrono::milliseconds kBetweenDraws{100};
constexpr int kUsualWidth = 80;

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualWidth;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
}

std::string short_count(double x) {
  constexpr std::array<const char*, 5> kSuffixes{"", "k", "M", "G", "T"};
  size_t i = 0;
  for (; i + 1 < kSuffixes.size() && x >= 999.5; ++i) x /= 1000;
  return i == 0 ? fmt::format("{:.0f}", x) : fmt::format("{:.3g}{}", x, kSuffixes[i]);
}

std::string short_time(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9));
  const int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}h", days, hours);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

/// The numbers of a report, those that matter most first.
std::vector<std::string> fields(const StepReport& report, std::optional<double> seconds_left) {
  std::vector<std::string> all{fmt::format("step {}/{}", report.step, report.total_steps),
                               fmt::format("loss {:.4f}", report.loss)};
  if (seconds_left) all.push_back(short_time(*seconds_left) + " left");
  all.push_back(short_count(report.tokens_per_second) + " tokens/s");
  all.push_back(fmt::format("lr {:.2e}", report.learning_rate));
  all.push_back(fmt::format("grad norm {:.3g}", report.grad_norm));
  if (report.mfu) all.push_back(fmt::format("MFU {:.1f} %", *report.mfu * 100));
  all.push_back(fmt::format("{:.2f} GiB", static_cast<double>(report.memory) / 0x1p30));
  if (report.skipped > 0) all.push_back(fmt::format("{} skipped", report.skipped));
  return all;
}

}  // namespace

std::string progress_bar(const StepReport& report, std::optional<double> seconds_left, int width) {
  constexpr size_t kShortestBar = 10, kLongestBar = 30;
  const auto room = static_cast<size_t>(std::max(width, 0));
  std::vector<std::string> all = fields(report, seconds_left);
  size_t used = all[0].size(), count = 1;
  while (count < all.size() && used + 2 + all[count].size() <= room) used += 2 + all[count++].size();
  std::string line = all[0].substr(0, room);
  const double share = report.total_steps > 0 ? static_cast<double>(report.step) / report.total_steps : 0;
  const std::string percent = fmt::format("] {:3.0f} %", std::floor(std::clamp(share, 0.0, 1.0) * 100));
  if (used + 2 + percent.size() + kShortestBar <= room) {
    const size_t length = std::min(room - used - 2 - percent.size(), kLongestBar);
    const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(length));
    line += " [" + std::string(full, '=') + std::string(length - full, ' ') + percent;
  }
  for (size_t i = 1; i < count; ++i) line += "  " + all[i];
  return line;
}

std::string progress_line(const StepReport& report, std::optional<double> seconds_left) {
  return fmt::format("{}", fmt::join(fields(report, seconds_left), "  "));
}

/// The first of the logger's sinks: takes the bar away before the others write their line.
class ProgressDisplay::ClearBeforeLog : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ClearBeforeLog(ProgressDisplay& progress) : progress_(progress) {}

 private:
  void sink_it_(const spdlog::details::log_msg&) override {
    const std::lock_guard lock(progress_.mutex_);
    progress_.clear();
  }
  void flush_() override {}

  ProgressDisplay& progress_;
};

ProgressDisplay::ProgressDisplay(int fd, int64_t every) : fd_(fd), every_(every), terminal_(::isatty(fd) == 1) {
  if (!terminal_) return;
  log_hook_ = std::make_shared<ClearBeforeLog>(*this);
  auto& sinks = spdlog::default_logger()->sinks();
  sinks.insert(sinks.begin(), log_hook_);
}

ProgressDisplay::~ProgressDisplay() {
  if (!terminal_) return;
  std::erase(spdlog::default_logger()->sinks(), log_hook_);
  if (drawn_ > 0) write_all(fd_, "\n");
}

void ProgressDisplay::step(const StepReport& report) {
  const std::optional<double> left = seconds_left(report);
  if (!terminal_) {
    if (is_logged(report.step, report.total_steps, every_)) write_all(fd_, progress_line(report, left) + "\n");
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - last_draw_ < kBetweenDraws && report.step != report.total_steps) return;
  last_draw_ = now;
  const int width = terminal_width(fd_);
  draw(progress_bar(report, left, width - 1), width);  // the last column would wrap on some terminals
}

void ProgressDisplay::evaluation(const EvaluationReport& report) {
  const std::lock_guard lock(mutex_);
  clear();
  write_all(fd_, fmt::format("step {}  validation loss {:.4f}  perplexity {:.4g}  ({} tokens in {})\n", report.step,
                             report.loss, std::exp(report.loss), short_count(static_cast<double>(report.tokens)),
                             short_time(report.seconds)));
}

std::optional<double> ProgressDisplay::seconds_left(const StepReport& report) {
  if (!first_) first_ = report;
  const int64_t steps = report.step - first_->step;
  if (steps <= 0) return {};
  return (report.seconds - first_->seconds) / static_cast<double>(steps) *
         static_cast<double>(report.total_steps - report.step);
}

void ProgressDisplay::draw(const std::string& bar, int width) {
  const std::lock_guard lock(mutex_);
  // A terminal that became narrower has wrapped the old bar over several rows.
  const size_t rows = drawn_ > 0 ? (drawn_ - 1) / static_cast<size_t>(width) : 0;
  std::string out = "\r";
  if (rows > 0) out += fmt::format("\x1b[{}A", rows);
  write_all(fd_, out + "\x1b[J" + bar);
  drawn_ = bar.size();
}

void ProgressDisplay::clear() {
  if (drawn_ == 0) return;
  write_all(fd_, "\r\x1b[J");
  drawn_ = 0;
}

}  // namespace yoke
