#include "data/options.h"

#include "base/error.h"

namespace yoke {

namespace {

constexpr int64_t kMaxSequenceLength = int64_t{1} << 24;
constexpr int kMaxThreads = 1024;

}  // namespace

std::string_view name_of(Format format) {
  switch (format) {
    case Format::text:
      return "text";
    case Format::jsonl:
      return "jsonl";
    case Format::tokens:
      return "tokens";
  }
  return "";
}

Format parse_format(std::string_view name) {
  for (const Format format : {Format::text, Format::jsonl, Format::tokens})
    if (name == name_of(format)) return format;
  fail_usage("data.format: '{}' is not supported; legal are text, jsonl and tokens.{}", name,
             did_you_mean(name, {"text", "jsonl", "tokens"}));
}

void check(const DataOptions& options) {
  if (options.train.empty()) fail_usage("data.train names no files; give files, globs or folders.");
  if (options.sequence_length < 2 || options.sequence_length > kMaxSequenceLength)
    fail_usage("data.sequence_length is {}; legal are 2 to {}.", options.sequence_length, kMaxSequenceLength);
  if (options.threads < 1 || options.threads > kMaxThreads)
    fail_usage("data: {} threads were asked for; legal are 1 to {}.", options.threads, kMaxThreads);
  if (options.cache.empty()) fail_usage("data: there is no folder for the token cache.");
  if (const double* fraction = std::get_if<double>(&options.validation)) {
    if (!(*fraction >= 0.0 && *fraction < 1.0))
      fail_usage("data.validation is {}; legal is a fraction from 0 up to, but not including, 1, or a list of files.",
                 *fraction);
  } else if (std::get<1>(options.validation).empty()) {
    fail_usage("data.validation is an empty list; give files, or 0 for no validation.");
  }
}

}  // namespace yoke
