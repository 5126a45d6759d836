// yoke generate: samples from a model with a key/value cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/random.h"
#include "train/commands.h"
#include "train/inference.h"
#include "train/sampling.h"

namespace yoke {

namespace {

/// The longest prefix of `text` that ends at a whole UTF-8 character; the rest is still growing.
size_t whole_characters(std::string_view text) {
  size_t end = text.size();
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    if (length > back) end = text.size() - back;
    break;
  }
  return end;
}

/// Prints text as it grows and sees where a stop text begins. What could still become a stop text is held back.
class Output {
 public:
  explicit Output(const std::vector<std::string>& stop) : stop_(stop) {}

  /// The whole text so far. False when a stop text has come.
  bool show(const std::string& text, bool last) {
    size_t end = last ? text.size() : whole_characters(text);
    bool go_on = true;
    size_t longest = 1;
    for (const std::string& stop : stop_) {
      if (stop.empty()) continue;
      longest = std::max(longest, stop.size());
      const size_t at = text.find(stop, shown_ > stop.size() ? shown_ - stop.size() : 0);
      if (at != std::string::npos && at < end) {
        end = at;
        go_on = false;
      }
    }
    if (go_on && !last) end -= std::min(end, longest - 1);
    if (end > shown_) {
      std::fwrite(text.data() + shown_, 1, end - shown_, stdout);
      std::fflush(stdout);
      shown_ = end;
    }
    return go_on;
  }

 private:
  const std::vector<std::string>& stop_;
  size_t shown_ = 0;
};

}  // namespace

int generate(const GenerateOptions& options) {
  InferenceModel model({.model = options.model,
                        .tokenizer = options.tokenizer,
                        .threads = options.threads,
                        .precision = options.precision});
  const Tokenizer& tokenizer = model.tokenizer();
  std::vector<int32_t> tokens = tokenizer.encode(options.prompt);
  if (tokenizer.adds_bos() && (tokens.empty() || tokens.front() != tokenizer.bos())) {
    tokens.insert(tokens.begin(), *tokenizer.bos());
  }
  if (tokens.empty()) {
    const auto start = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
    if (!start) fail_usage("--prompt is empty and the tokenizer has no token to begin with; give a prompt.");
    tokens.push_back(*start);
  }
  const auto prompt = static_cast<int64_t>(tokens.size());
  const int64_t longest = model.config().max_positions;
  if (prompt >= longest) {
    fail_usage("The prompt has {} tokens; the model's longest sequence (max_position_embeddings) is {}. Shorten it.",
               prompt, longest);
  }
  const int64_t limit = std::min(longest, prompt + options.max_tokens);
  model.prepare_generation(limit);

  std::vector<int32_t> ends = model.config().eos;
  if (const auto eos = tokenizer.eos()) ends.push_back(*eos);
  const RandomStream random{static_cast<uint64_t>(options.seed), 0};
  const SamplingOptions sampling{options.temperature, options.top_k, options.top_p};
  Output output(options.stop);
  std::fwrite(options.prompt.data(), 1, options.prompt.size(), stdout);
  // Decoding from the prompt on keeps what a tokenizer does at the start of a text out of the sample.
  const size_t before = tokenizer.decode(tokens, true).size();
  std::string text;
  int32_t id = 0;
  for (int64_t sampled = 0; static_cast<int64_t>(tokens.size()) < limit; ++sampled) {
    const std::vector<float> logits = model.append(sampled == 0 ? std::span<const int32_t>(tokens) : std::span(&id, 1));
    id = sample_token(logits, tokenizer.vocabulary_size(), sampling, random.uniform(static_cast<uint64_t>(sampled)));
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) break;
    tokens.push_back(id);
    text = tokenizer.decode(tokens, true);
    text.erase(0, std::min(before, text.size()));
    if (!output.show(text, false)) {
      std::fputc('\n', stdout);
      return 0;
    }
  }
  output.show(text, true);
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace yoke
