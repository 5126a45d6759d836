#include "data/inspect.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"

namespace yoke {

namespace {

/// "12,345".
std::string grouped(int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string describe_lengths(const TokenStore& store) {
  std::array<int64_t, 64> counts{};
  int64_t shortest = INT64_MAX, longest = 0;
  for (int64_t i = 0; i < store.documents(); ++i) {
    const int64_t length = store.length(i);
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    ++counts[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)) - 1)];
  }
  std::string text =
      fmt::format("lengths     shortest {}, mean {:.1f}, longest {} tokens\n", grouped(shortest),
                  static_cast<double>(store.tokens()) / static_cast<double>(store.documents()), grouped(longest));
  for (int bits = 0; bits < 63; ++bits) {
    if (counts[bits] == 0) continue;
    const int64_t from = int64_t{1} << bits;
    text += fmt::format("            {:>14} to {:<14} {:>14} documents\n", grouped(from), grouped(from - 1 + from),
                        grouped(counts[bits]));
  }
  return text;
}

std::string describe_corpus(const TokenStore& store) {
  const CorpusCounts& counts = store.counts();
  std::string text = fmt::format("files       {}, {} of them empty, {} with CR LF (read as LF)\n",
                                 grouped(counts.files), grouped(counts.empty_files), grouped(counts.crlf_files));
  text += fmt::format("documents   {}; {} more without a token were dropped\n", grouped(store.documents()),
                      grouped(counts.empty_documents));
  text += fmt::format("tokens      {}, end-of-sequence tokens counted\n", grouped(store.tokens()));
  return text + describe_lengths(store);
}

std::string describe_side(const char* name, const TokenDataset& data) {
  const DatasetCounts& counts = data.counts();
  std::string text = fmt::format("{:<11} {} rows of {} tokens", name, grouped(data.rows()), data.sequence_length());
  if (data.rows() != counts.rows)
    text += fmt::format(" (rows {} to {} of {})", data.first_row(), data.first_row() + data.rows() - 1, counts.rows);
  text += fmt::format(", from {} documents of {} tokens\n", grouped(counts.documents), grouped(counts.tokens));
  const std::string cut = data.packing()
                              ? "packed, longer documents go on in the next row"
                              : fmt::format("{} documents cut into several rows", grouped(counts.cut_documents));
  const auto positions = static_cast<double>(std::max<int64_t>(1, counts.rows * data.sequence_length()));
  text += fmt::format(
      "            {}; 0 truncated; {} rows dropped (no supervised token); {} positions of padding ({:.2f} %)\n", cut,
      grouped(counts.dropped_rows), grouped(counts.padding), 100.0 * static_cast<double>(counts.padding) / positions);
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

/// Tokens [begin, end) of a row: one document. A token is supervised when the position before it has it as target.
std::string describe_document(const Batch& batch, int64_t begin, int64_t end, const Tokenizer& tokenizer, bool colour) {
  const auto supervised = [&](int64_t i) { return i > begin && batch.targets[i - 1] != Batch::kIgnore; };
  const auto count = std::count_if(batch.targets.begin() + begin, batch.targets.begin() + end,
                                   [](int32_t target) { return target != Batch::kIgnore; });
  std::string text = fmt::format("-- tokens {} to {}, positions {} to {}, {} supervised\n", begin, end - 1,
                                 batch.positions[begin], batch.positions[end - 1], count);
  for (int64_t from = begin, to; from < end; from = to) {
    to = from + 1;
    while (to < end && supervised(to) == supervised(from)) ++to;
    const std::string part = escaped(tokenizer.decode({batch.tokens.data() + from, static_cast<size_t>(to - from)}));
    if (supervised(from)) {
      text += colour ? fmt::format("\x1b[32m{}\x1b[0m", part) : part;
    } else {
      text += colour ? part : fmt::format("⟦{}⟧", part);
    }
  }
  return text + "\n";
}

}  // namespace

std::string describe(const Datasets& data) {
  std::string text = describe_corpus(data.train->store()) + describe_side("training", *data.train);
  if (!data.validation) return text + "validation  none\n";
  if (&data.validation->store() != &data.train->store())
    text += "\nvalidation files\n" + describe_corpus(data.validation->store());
  return text + describe_side("validation", *data.validation);
}

std::string describe_row(const Dataset& data, int64_t row, const Tokenizer& tokenizer, bool colour) {
  Batch batch = padding_batch(1, data.sequence_length(), 0);
  data.read(row, batch, 0);
  std::string text = fmt::format("row {}: {} tokens, {} supervised\n", row, batch.length, batch.supervised);
  // A position that sees only itself and predicts nothing is padding, or an end-of-sequence token at a row's start.
  const auto is_padding = [&](int64_t i) {
    return batch.targets[i] == Batch::kIgnore && batch.key_begin[i] == i && i > 0;
  };
  for (int64_t begin = 0, end; begin < batch.length; begin = end) {
    end = begin + 1;
    if (is_padding(begin)) {
      while (end < batch.length && is_padding(end)) ++end;
      text += fmt::format("-- tokens {} to {}: padding\n", begin, end - 1);
      continue;
    }
    while (end < batch.length && batch.key_begin[end] == batch.key_begin[begin]) ++end;
    text += describe_document(batch, begin, end, tokenizer, colour);
  }
  return text;
}

}  // namespace yoke
