// metrics.jsonl: valid JSON a line, no step twice after a resume, and a full disk that costs lines but not the run.
#include "monitor/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace yoke {
namespace {

class Metrics : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "yoke_metrics_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "metrics.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write_steps(int64_t resumed, int64_t first, int64_t last, double loss = 2.5) {
    MetricsWriter writer(path_, resumed);
    for (int64_t step = first; step <= last; ++step) writer.step({.step = step, .total_steps = 100, .loss = loss});
  }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> all;
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> all;
    for (const auto& line : lines()) all.push_back(line["step"]);
    return all;
  }

  std::filesystem::path folder_, path_;
};

TEST_F(Metrics, SlowRanksAreThereWhereThereAreSome) {
  MetricsWriter writer(path_, 0);
  writer.step({.step = 1});
  writer.step({.step = 2, .slow_ranks = {{3, "node1", 4.5, "too hot"}, {4, "node2", 1, ""}}});
  EXPECT_FALSE(lines()[0].contains("slow_ranks"));
  const auto slow = lines()[1]["slow_ranks"];
  ASSERT_EQ(slow.size(), 2u);
  EXPECT_EQ(slow[0], (nlohmann::json{{"rank", 3}, {"host", "node1"}, {"seconds_lost", 4.5}, {"cause", "too hot"}}));
}

TEST_F(Metrics, OneObjectAStepAndNullForWhatIsNoNumber) {
  MetricsWriter writer(path_, 0);
  writer.step({.step = 10,
               .total_steps = 100,
               .epoch = 0.5,
               .loss = 2.25,
               .learning_rate = 3e-4,
               .grad_norm = std::numeric_limits<double>::quiet_NaN(),
               .tokens = int64_t{1} << 40,
               .tokens_per_second = std::numeric_limits<double>::infinity(),
               .memory = 12345,
               .seconds = 1.5,
               .skipped = 2});
  writer.evaluation({.step = 10, .loss = 2.5, .tokens = 99, .seconds = 0.25});
  // The file is complete while the writer lives.
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0], nlohmann::json::parse(
                        R"({"step": 10, "epoch": 0.5, "loss": 2.25, "lr": 0.0003, "grad_norm": null,
                            "tokens": 1099511627776, "tokens_per_second": null, "mfu": null, "memory": 12345,
                            "seconds": 1.5, "skipped": 2})"));
  EXPECT_EQ(all[1], nlohmann::json::parse(R"({"step": 10, "validation_loss": 2.5, "validation_tokens": 99,
                                              "validation_seconds": 0.25})"));
}

TEST_F(Metrics, AResumedRunRepeatsNoStep) {
  write_steps(0, 1, 10, 1.0);
  std::ofstream(path_, std::ios::app) << "{\"step\": 11, \"lo";  // torn by a kill
  write_steps(6, 7, 12, 2.0);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(lines()[5]["loss"], 1.0);
  EXPECT_EQ(lines()[6]["loss"], 2.0);
}

TEST_F(Metrics, ANewRunBeginsANewFile) {
  write_steps(0, 1, 10);
  write_steps(0, 1, 2);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
}

TEST_F(Metrics, ResumingWithoutAFileOrWithGarbageBeginsOne) {
  write_steps(5, 6, 7);
  EXPECT_EQ(steps(), (std::vector<int64_t>{6, 7}));
  std::ofstream(path_) << "\xff\xfe\n[]\n{}\n{\"step\": \"1\"}\n\n{\"step\": 2}\n" << std::string(100000, '[') << "\n";
  write_steps(5, 6, 6);
  EXPECT_EQ(steps(), (std::vector<int64_t>{2, 6}));
}

TEST_F(Metrics, AFolderThatIsNotThereIsAnError) {
  EXPECT_THROW(MetricsWriter(folder_ / "no" / "metrics.jsonl", 0), UserError);
}

// The file-size limit makes write() fail in the middle of a line, as a full disk does.
TEST_F(Metrics, AFullDiskLosesLinesButTearsNone) {
  auto* old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  {
    MetricsWriter writer(path_, 0);
    for (int64_t step = 1; step <= 5; ++step) writer.step({.step = step});
    rlimit limit = old_limit;
    limit.rlim_cur = std::filesystem::file_size(path_) + 20;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int64_t step = 6; step <= 8; ++step) writer.step({.step = step});
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
    for (int64_t step = 9; step <= 10; ++step) writer.step({.step = step});
  }
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4, 5, 9, 10}));
}

}  // namespace
}  // namespace yoke
