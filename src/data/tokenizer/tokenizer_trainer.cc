#include "data/tokenizer/tokenizer_trainer.h"

#include <sentencepiece_trainer.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/utf8.h"

namespace yoke {

namespace {

namespace fs = std::filesystem;

/// SentencePiece drops sentences that are longer; lines are cut, at a space where there is one.
constexpr size_t kMaxSentenceBytes = 4000;
/// Of more sentences a random sample is taken: what is beyond adds memory, not quality.
constexpr int64_t kMaxSentences = 4'000'000;
constexpr int64_t kMaxVocabulary = 1 << 20;

/// Feeds the lines of files to the trainer.
class LineIterator : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(const std::vector<fs::path>& files) : files_(files) { Next(); }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (rest_.empty()) {
      if (next_file_ == files_.size()) {
        done_ = true;
        return;
      }
      file_ = MappedFile(files_[next_file_++]);
      rest_ = file_.text();
    }
    std::string_view line = rest_.substr(0, rest_.find('\n'));
    const bool whole = line.size() <= kMaxSentenceBytes;
    if (!whole) line = line.substr(0, cut_position(line));
    rest_.remove_prefix(std::min(rest_.size(), line.size() + (whole ? 1 : 0)));
    if (line.ends_with('\r')) line.remove_suffix(1);
    line_ = as_utf8(line, storage_);
    std::erase(line_, '\0');  // the trainer refuses it
  }

 private:
  static size_t cut_position(std::string_view line) {
    const size_t space = line.rfind(' ', kMaxSentenceBytes);
    if (space != line.npos && space > 0) return space;
    size_t at = kMaxSentenceBytes;
    while (at > kMaxSentenceBytes - 3 && (static_cast<uint8_t>(line[at]) & 0xc0) == 0x80) --at;
    return at;
  }

  const std::vector<fs::path>& files_;
  size_t next_file_ = 0;
  MappedFile file_;
  std::string_view rest_;
  std::string line_, storage_;
  bool done_ = false;
};

/// The number that follows `words` in a message of the trainer's.
std::optional<int64_t> number_after(std::string_view message, std::string_view words) {
  const size_t at = message.find(words);
  if (at == message.npos) return std::nullopt;
  int64_t number = 0;
  size_t digit = at + words.size();
  if (digit >= message.size() || std::isdigit(static_cast<uint8_t>(message[digit])) == 0) return std::nullopt;
  for (; digit < message.size() && std::isdigit(static_cast<uint8_t>(message[digit])) != 0; ++digit) {
    number = number * 10 + (message[digit] - '0');
  }
  return number;
}

[[noreturn]] void explain_failure(const TokenizerTraining& training, std::string_view message) {
  if (const auto largest = number_after(message, "Please set it to a value <= ")) {
    fail_usage(
        "A vocabulary of {} tokens is too large for this text: at most {} can be learned from it. Choose a smaller "
        "size or give more text.",
        training.vocabulary_size, *largest);
  }
  if (const auto smallest = number_after(message, " vs ")) {
    fail_usage("A vocabulary of {} tokens is too small: this text needs at least {} for its characters.",
               training.vocabulary_size, *smallest + 1);
  }
  fail_usage("The tokenizer can't be trained: {}.", message);
}

void check(const TokenizerTraining& training) {
  if (training.files.empty()) fail_usage("A tokenizer needs at least one file of text to be trained on.");
  const int64_t smallest = training.byte_fallback ? 256 + 3 + 1 : 4;
  if (training.vocabulary_size < smallest || training.vocabulary_size > kMaxVocabulary) {
    fail_usage("A vocabulary of {} tokens is not possible; {} to {} are.", training.vocabulary_size, smallest,
               kMaxVocabulary);
  }
  uintmax_t bytes = 0;
  for (const fs::path& file : training.files) bytes += MappedFile(file).size();
  if (bytes == 0) fail_usage("The files hold no text to train a tokenizer on.");
}

}  // namespace

void train_tokenizer(const TokenizerTraining& training) {
  check(training);
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", training.kind == TokenizerTraining::Kind::bpe ? "bpe" : "unigram"},
      {"vocab_size", std::to_string(training.vocabulary_size)},
      {"byte_fallback", training.byte_fallback ? "true" : "false"},
      {"character_coverage", training.byte_fallback ? "0.99995" : "1.0"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"max_sentence_length", std::to_string(kMaxSentenceBytes + 16)},
      {"input_sentence_size", std::to_string(kMaxSentences)},
      {"shuffle_input_sentence", "true"},
      {"num_threads", "4"},  // fixed: sums in another order could give another model
      {"minloglevel", "2"},
  };
  LineIterator lines(training.files);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
  if (!status.ok()) explain_failure(training, status.error_message());

  std::error_code error;
  fs::create_directories(training.output, error);
  if (error) fail_file("{}: can't be made: {}.", training.output.string(), error.message());
  const nlohmann::ordered_json config = {{"tokenizer_class", "LlamaTokenizer"},
                                         {"bos_token", "<s>"},
                                         {"eos_token", "</s>"},
                                         {"unk_token", "<unk>"},
                                         {"add_bos_token", true},
                                         {"clean_up_tokenization_spaces", false}};
  write_file(training.output / "tokenizer.model", model);
  write_file(training.output / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace yoke
