#include "train/rank_log.h"

#include <spdlog/sinks/base_sink.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "train/agreement.h"

namespace yoke {

namespace {

constexpr size_t kMostLines = 200;  // that a rank holds back

}  // namespace

/// Takes the place of the logger's sinks, and hands on what this rank writes itself.
class RankLog::Sink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  struct Line {
    int level = 0;
    std::string text;
    auto operator<=>(const Line&) const = default;
  };

  Sink(int rank, std::string tag, std::vector<spdlog::sink_ptr> below)
      : rank_(rank), tag_(std::move(tag)), below_(std::move(below)) {}

  std::vector<Line> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }
  void set_tag(std::string tag) {
    const std::lock_guard lock(mutex_);
    tag_ = std::move(tag);
  }
  std::string tag() {
    const std::lock_guard lock(mutex_);
    return tag_;
  }
  const std::vector<spdlog::sink_ptr>& below() const { return below_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (rank_ == 0) {
      for (const spdlog::sink_ptr& sink : below_) sink->log(message);
    }
    if (message.level < spdlog::level::warn) return;
    if (lines_.size() < kMostLines) {
      lines_.push_back({static_cast<int>(message.level), std::string(message.payload.data(), message.payload.size())});
    }
  }
  /// Whoever ends the process flushes first.
  void flush_() override {
    if (rank_ != 0) {
      for (const Line& line : std::exchange(lines_, {})) {
        const std::string text = fmt::format("{}: {}", tag_, line.text);
        const spdlog::details::log_msg message("yoke", static_cast<spdlog::level::level_enum>(line.level), text);
        for (const spdlog::sink_ptr& sink : below_) sink->log(message);
      }
    }
    for (const spdlog::sink_ptr& sink : below_) sink->flush();
  }

  int rank_;
  std::string tag_;
  std::vector<spdlog::sink_ptr> below_;
  std::vector<Line> lines_;
};

RankLog::RankLog(int rank, std::string tag) {
  auto& sinks = spdlog::default_logger()->sinks();
  sink_ = std::make_shared<Sink>(rank, std::move(tag), sinks);
  sink_->set_level(spdlog::level::trace);
  sinks.assign(1, sink_);
  rank_ = rank;
}

RankLog::~RankLog() {
  sink_->flush();
  spdlog::default_logger()->sinks() = sink_->below();
}

void RankLog::set_tag(std::string tag) { sink_->set_tag(std::move(tag)); }

std::string RankLog::tag() const { return sink_->tag(); }

void RankLog::share(HostGroup& host, const RankNames& names) {
  nlohmann::json mine = nlohmann::json::array();
  for (const Sink::Line& line : sink_->take()) mine.push_back({line.level, line.text});
  const std::string text = mine.empty() ? "" : mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::vector<std::string> all = host.all_gather(sink_->tag() + "\n" + text);
  if (rank_ != 0) return;
  std::vector<Sink::Line> order;
  std::map<Sink::Line, std::vector<int>> ranks;
  std::vector<std::string> tags;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const size_t end = all[rank].find('\n');
    tags.push_back(all[rank].substr(0, end));
    if (end + 1 == all[rank].size()) continue;
    for (const auto& item : nlohmann::json::parse(all[rank].substr(end + 1))) {
      const Sink::Line line{item[0], item[1]};
      std::vector<int>& who = ranks[line];
      if (who.empty()) order.push_back(line);
      if (who.empty() || who.back() != static_cast<int>(rank)) who.push_back(static_cast<int>(rank));
    }
  }
  for (const Sink::Line& line : order) {
    const std::vector<int>& who = ranks[line];
    if (who[0] == 0) continue;  // said already
    const std::string tag = who.size() == 1 ? tags[static_cast<size_t>(who[0])] : names.text(who);
    const std::string full = fmt::format("{}: {}", tag, line.text);
    const spdlog::details::log_msg message("yoke", static_cast<spdlog::level::level_enum>(line.level), full);
    for (const spdlog::sink_ptr& sink : sink_->below()) sink->log(message);
  }
}

}  // namespace yoke
