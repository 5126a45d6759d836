#include "data/datasets.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "data/files.h"
#include "data/token_cache.h"

namespace yoke {

namespace {

using Store = std::shared_ptr<const TokenStore>;
using Files = std::vector<std::filesystem::path>;

void check_disjoint(const Files& train, const Files& validation) {
  std::set<std::string> known;
  for (const auto& file : train) known.insert(std::filesystem::weakly_canonical(file).native());
  for (const auto& file : validation)
    if (known.contains(std::filesystem::weakly_canonical(file).native()))
      fail_usage("{} is in data.train and in data.validation; a file can only be in one of them.", file.string());
}

[[noreturn]] void fail_no_rows(const char* side, const TokenStore& store, const DataOptions& options) {
  fail_usage(
      "data: no row is left for {}: the corpus has {} documents and {} tokens, and data.sequence_length is {}. "
      "Make data.sequence_length smaller, add data, or change data.validation.",
      side, store.documents(), store.tokens(), options.sequence_length);
}

/// Holds out `fraction` of the documents, or of the rows when the documents are too few.
void split(const Store& store, const DataOptions& options, double fraction, Datasets& out) {
  const auto make = [&](DocumentSplit part, int64_t first = 0, int64_t end = -1) {
    return std::make_unique<TokenDataset>(store, options.sequence_length, options.packing, part, first, end);
  };
  if (fraction == 0.0) {
    out.train = make({});
  } else if (static_cast<double>(store->documents()) * fraction >= static_cast<double>(kMinHeldOut)) {
    out.train = make({DocumentSplit::Part::training, fraction});
    out.validation = make({DocumentSplit::Part::validation, fraction});
  } else {
    const int64_t rows = make({})->rows();
    const auto share = static_cast<int64_t>(std::llround(static_cast<double>(rows) * fraction));
    const int64_t held_out = std::min(std::max<int64_t>(share, 1), rows);
    out.train = make({}, 0, rows - held_out);
    out.validation = make({}, rows - held_out, rows);
  }
}

}  // namespace

Datasets open_datasets(const DataOptions& options, const Tokenizer& tokenizer) {
  check(options);
  const auto open = [&](const Files& files) {
    return open_corpus(files, options.format, tokenizer, options.cache, options.threads);
  };
  const Files files = expand_patterns(options.train, options.format);
  Datasets out;
  std::string held_out;
  if (const double* fraction = std::get_if<double>(&options.validation)) {
    split(open(files), options, *fraction, out);
    held_out = fmt::format("{}", *fraction);
  } else {
    const Files validation = expand_patterns(std::get<1>(options.validation), options.format);
    check_disjoint(files, validation);
    out.train = std::make_unique<TokenDataset>(open(files), options.sequence_length, options.packing);
    out.validation = std::make_unique<TokenDataset>(open(validation), options.sequence_length, options.packing);
    held_out = cache_key(validation, options.format, tokenizer);
  }
  if (out.train->rows() == 0) fail_no_rows("training", out.train->store(), options);
  if (out.validation && out.validation->rows() == 0) fail_no_rows("validation", out.validation->store(), options);
  const std::string decides = fmt::format("{} {} {} {}", cache_key(files, options.format, tokenizer),
                                          options.sequence_length, options.packing, held_out);
  out.fingerprint = hash_hex(decides.data(), decides.size());
  return out;
}

}  // namespace yoke
