// The progress display on a real pseudo-terminal, in a pipe, and at every width.
#include "monitor/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <limits>
#include <sstream>

#include "base/log.h"

namespace yoke {
namespace {

StepReport report(int64_t step) {
  return {.step = step,
          .total_steps = 2000,
          .epoch = 0.5,
          .loss = 2.34567,
          .learning_rate = 3e-4,
          .grad_norm = 0.98765,
          .tokens = 1000,
          .tokens_per_second = 12345,
          .mfu = 0.456,
          .memory = int64_t{3} << 29,
          .seconds = static_cast<double>(step) * 0.5};
}

/// What is readable from `fd` now.
std::string drain(int fd) {
  std::string all;
  for (pollfd ready{fd, POLLIN, 0}; ::poll(&ready, 1, 50) == 1 && (ready.revents & POLLIN) != 0;) {
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) break;
    all.append(buffer, static_cast<size_t>(n));
  }
  return all;
}

TEST(ProgressText, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(progress_line(report(10), 3723),
            "step 10/2000  loss 2.3457  1:02:03 left  12.3k tokens/s  lr 3.00e-04  grad norm 0.988  MFU 45.6 %  "
            "1.50 GiB");
  EXPECT_EQ(progress_bar(report(1000), 59, 200),
            "step 1000/2000 [===============               ]  50 %  loss 2.3457  0:59 left  12.3k tokens/s  "
            "lr 3.00e-04  grad norm 0.988  MFU 45.6 %  1.50 GiB");
}

TEST(ProgressText, FitsEveryWidth) {
  size_t last = 0;
  for (int width = 0; width < 250; ++width) {
    const std::string bar = progress_bar(report(1999), 1e12, width);
    EXPECT_LE(bar.size(), static_cast<size_t>(width));
    EXPECT_EQ(bar.find_first_of("\n\r\x1b"), std::string::npos);
    EXPECT_EQ(bar.find("loss 2.3457") != std::string::npos, width >= 27) << bar;
    EXPECT_TRUE(width < 120 || bar.size() >= last) << bar;
    last = width >= 120 ? bar.size() : 0;
  }
  EXPECT_EQ(progress_bar(report(1), {}, -5), "");
}

TEST(ProgressText, OddNumbersStayReadable) {
  StepReport odd = report(1);
  odd.total_steps = 0;
  odd.loss = std::numeric_limits<double>::quiet_NaN();
  odd.mfu.reset();
  odd.tokens_per_second = 999999;
  odd.skipped = 3;
  EXPECT_EQ(progress_line(odd, {}),
            "step 1/0  loss nan  1M tokens/s  lr 3.00e-04  grad norm 0.988  1.50 GiB  3 skipped");
  progress_bar(odd, {}, 100);
}

TEST(ProgressPipe, OneLineALoggedStep) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    ProgressDisplay progress(ends[1], 500);
    for (int64_t step = 1; step <= 2000; ++step) progress.step(report(step));
    progress.evaluation({.step = 2000, .loss = 0, .tokens = 1500, .seconds = 61});
  }
  ::close(ends[1]);
  std::istringstream lines(drain(ends[0]));
  ::close(ends[0]);
  std::vector<std::string> heads;
  std::string last;
  for (std::string line; std::getline(lines, line); last = line) heads.push_back(line.substr(0, line.find("  ")));
  EXPECT_EQ(heads, (std::vector<std::string>{"step 1/2000", "step 500/2000", "step 1000/2000", "step 1500/2000",
                                             "step 2000/2000", "step 2000"}));
  EXPECT_EQ(last, "step 2000  validation loss 0.0000  perplexity 1  (1.5k tokens in 1:01)");
}

TEST(ProgressPipe, TimeLeftFollowsFromTheStepsOfThisSession) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ProgressDisplay progress(ends[1], 100);
  StepReport now = report(1000);  // resumed: the first step seen
  now.seconds = 10;
  progress.step(now);
  now = report(1100);
  now.seconds = 210;  // 2 s a step, 900 steps left
  progress.step(now);
  EXPECT_NE(drain(ends[0]).find("step 1100/2000  loss 2.3457  30:00 left"), std::string::npos);
  ::close(ends[0]);
  ::close(ends[1]);
}

class ProgressTerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    winsize size{.ws_row = 24, .ws_col = 80};
    ASSERT_EQ(::openpty(&master_, &terminal_, nullptr, nullptr, &size), 0);
  }
  void TearDown() override {
    ::close(terminal_);
    ::close(master_);
  }
  void resize(unsigned short columns) {
    winsize size{.ws_row = 24, .ws_col = columns};
    ASSERT_EQ(::ioctl(master_, TIOCSWINSZ, &size), 0);
  }

  int master_ = -1, terminal_ = -1;
};

TEST_F(ProgressTerminal, RedrawsInPlaceAndNotTooOften) {
  {
    ProgressDisplay progress(terminal_, 10);
    for (int64_t step = 1; step <= 2000; ++step) progress.step(report(step));
  }
  const std::string out = drain(master_);
  EXPECT_TRUE(out.starts_with("\r\x1b[Jstep 1/2000"));
  EXPECT_NE(out.find("\r\x1b[Jstep 2000/2000 "), std::string::npos);
  EXPECT_TRUE(out.ends_with("\r\n"));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_LT(out.size(), 2000u * 20);
}

TEST_F(ProgressTerminal, FollowsTheWidth) {
  ProgressDisplay progress(terminal_, 10);
  progress.step(report(1));
  const std::string wide = drain(master_);
  EXPECT_GT(wide.size(), 60u);
  EXPECT_LT(wide.size(), 80u + 4);
  resize(30);
  progress.step(report(2000));
  const std::string narrow = drain(master_);
  EXPECT_TRUE(narrow.starts_with("\r\x1b[2A\x1b[Jstep 2000/2000")) << narrow.substr(1);  // the old bar took three rows
  EXPECT_LT(narrow.size(), 30u + 9);
}

TEST_F(ProgressTerminal, LogLinesAndEvaluationsGoAboveTheBar) {
  auto old = spdlog::default_logger();
  std::ostringstream text;
  auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  {
    ProgressDisplay progress(terminal_, 10);
    progress.step(report(1));
    drain(master_);
    log::warn("careful");
    EXPECT_EQ(drain(master_), "\r\x1b[J");
    log::warn("again");
    EXPECT_EQ(drain(master_), "");
    progress.step(report(2000));
    drain(master_);
    progress.evaluation({.step = 2000, .loss = 1, .tokens = 10, .seconds = 1});
    EXPECT_TRUE(drain(master_).starts_with("\r\x1b[Jstep 2000  validation loss 1.0000"));
  }
  EXPECT_EQ(spdlog::default_logger()->sinks().size(), 1u);
  spdlog::set_default_logger(old);
}

}  // namespace
}  // namespace yoke
