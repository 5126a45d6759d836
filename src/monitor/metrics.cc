#include "monitor/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace yoke {

namespace {

using Json = nlohmann::ordered_json;

/// The step of a metrics line, or a step beyond every other for a line that is none.
int64_t step_of(std::string_view line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) return INT64_MAX;
  return object["step"].get<int64_t>();
}

/// The whole lines of `path` up to `last_step`.
std::string lines_up_to(const std::filesystem::path& path, int64_t last_step) {
  const MappedFile file(path);
  std::string kept;
  std::string_view rest = file.text();
  for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
    if (step_of(rest.substr(0, end)) <= last_step) kept += rest.substr(0, end + 1);
  }
  return kept;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& path, int64_t resumed_step) : path_(path) {
  if (std::filesystem::exists(path)) write_file(path, resumed_step > 0 ? lines_up_to(path, resumed_step) : "");
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_file("{}: can't be written: {}.", path.string(), std::generic_category().message(errno));
  size_ = ::lseek(fd_, 0, SEEK_END);
}

MetricsWriter::~MetricsWriter() { ::close(fd_); }

void MetricsWriter::step(const StepReport& report) {
  Json line;
  line["step"] = report.step;
  line["epoch"] = report.epoch;
  line["loss"] = report.loss;
  line["lr"] = report.learning_rate;
  line["grad_norm"] = report.grad_norm;
  line["tokens"] = report.tokens;
  line["tokens_per_second"] = report.tokens_per_second;
  line["mfu"] = report.mfu ? Json(*report.mfu) : Json();
  line["memory"] = report.memory;
  line["seconds"] = report.seconds;
  line["skipped"] = report.skipped;
  for (const SlowRank& slow : report.slow_ranks) {
    line["slow_ranks"].push_back(
        {{"rank", slow.rank}, {"host", slow.host}, {"seconds_lost", slow.lost}, {"cause", slow.cause}});
  }
  append(line.dump() + "\n");
}

void MetricsWriter::evaluation(const EvaluationReport& report) {
  Json line;
  line["step"] = report.step;
  line["validation_loss"] = report.loss;
  line["validation_tokens"] = report.tokens;
  line["validation_seconds"] = report.seconds;
  append(line.dump() + "\n");
}

void MetricsWriter::append(const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += static_cast<size_t>(n);
  }
  if (done == line.size()) {
    size_ += static_cast<int64_t>(done);
    return;
  }
  const std::string why = std::generic_category().message(errno);
  const bool whole = done == 0 || ::ftruncate(fd_, size_) == 0;
  if (!warned_) {
    log::warn("{}: can't be written: {}. Training goes on; lines are missing{}.", path_.string(), why,
              whole ? "" : " and one is torn");
  }
  warned_ = true;
}

}  // namespace yoke
