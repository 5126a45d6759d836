// yoke eval: loss and perplexity of a model on files.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/datasets.h"
#include "data/loader.h"
#include "train/commands.h"
#include "train/inference.h"

namespace yoke {

namespace {

/// A folder of its own for the token cache, gone when the command ends.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "yoke-eval-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_file("{}: can't be made for the token cache.", name);
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

int evaluate(const EvalOptions& options) {
  constexpr int64_t kLongest = 2048;
  InferenceModel model({.model = options.model,
                        .tokenizer = options.tokenizer,
                        .threads = options.threads,
                        .precision = options.precision});
  const int64_t length = options.sequence_length.value_or(std::min(model.config().max_positions, kLongest));
  model.prepare_evaluation(options.batch, length);

  const ScratchFolder cache;
  const Datasets data = open_datasets({.train = options.data,
                                       .format = options.format,
                                       .sequence_length = length,
                                       .cache = cache.path(),
                                       .threads = model.threads()},
                                      model.tokenizer());
  Loader loader(
      *data.train,
      {.micro_batch = options.batch, .global_batch = options.batch, .shuffle = false, .limit = data.train->rows()});
  double sum = 0;
  int64_t tokens = 0;
  while (const auto step = loader.next()) {
    for (const Batch& batch : step->batches) {
      sum += model.evaluate(batch);
      tokens += batch.supervised;
    }
  }
  const double loss = sum / static_cast<double>(tokens);
  if (!std::isfinite(loss)) {
    throw UserError(ExitCode::non_finite, fmt::format("{}: the loss is not finite ({}).", options.model, loss));
  }
  if (options.json) {
    fmt::print("{}\n", nlohmann::json{{"loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", tokens}}.dump());
  } else {
    fmt::print("loss {:.4f} nats per token, perplexity {:.3f}, {} tokens\n", loss, std::exp(loss), tokens);
  }
  return 0;
}

}  // namespace yoke
