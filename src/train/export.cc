// yoke export: a checkpoint becomes a model folder.
#include "base/log.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/training_state.h"
#include "train/commands.h"
#include "train/run_setup.h"
#include "train/training_checkpoint.h"

namespace yoke {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kPieceElements = 1 << 21;  // of a row that are in memory at a time

/// `source` is a run or one checkpoint; the run's folder goes to `run`.
std::unique_ptr<Checkpoint> open_source(const fs::path& source, fs::path* run) {
  if (!fs::exists(source))
    fail_usage("{}: does not exist; give a run's output folder or a checkpoint.", source.string());
  if (fs::is_directory(source / "checkpoints")) {
    *run = source;
    auto newest = Checkpoint::newest(source / "checkpoints");
    if (!newest) fail_file("{}: has no whole checkpoint.", (source / "checkpoints").string());
    return newest;
  }
  if (!fs::exists(source / "state.json")) {
    const char* hint = fs::exists(source / "config.json") ? " It is a Hugging Face folder already." : "";
    fail_usage("{}: is neither a run's output folder nor a checkpoint.{}", source.string(), hint);
  }
  const fs::path path = fs::absolute(source).lexically_normal();
  const fs::path checkpoint = path.has_filename() ? path : path.parent_path();
  *run = checkpoint.parent_path().parent_path();
  return std::make_unique<Checkpoint>(checkpoint);
}

/// Rows of the model, a few at a time.
std::vector<WeightPiece> pieces_of(const Checkpoint& checkpoint, const ParameterTable& table) {
  std::vector<WeightPiece> pieces;
  const auto buffer = std::make_shared<std::vector<char>>();
  for (size_t row = 0; row < table.size(); ++row) {
    const Shape& shape = table[row].shape;
    const std::string name = "weights." + table[row].name;
    const int64_t cols = shape.rank() == 1 ? 1 : shape.cols(), step = std::max(kPieceElements / cols, int64_t{1});
    for (int64_t first = 0; first < shape[0]; first += step) {
      const int64_t count = std::min(step, shape[0] - first);
      const Region region{{first}, shape.rank() == 1 ? Shape{count} : Shape{count, cols}};
      pieces.push_back({row, region, [&checkpoint, name, shape, region, buffer] {
                          // A missing tensor is the reader's to name.
                          const DType dtype = checkpoint.has(name) ? checkpoint.dtype(name) : DType::f32;
                          buffer->resize(static_cast<size_t>(region.shape.elements()) * size_of(dtype));
                          const TensorView view(buffer->data(), dtype, region.shape);
                          checkpoint.read(name, shape, region, view);
                          return view;
                        }});
    }
  }
  return pieces;
}

}  // namespace

int export_checkpoint(const ExportOptions& options) {
  if (options.format != ExportFormat::hf) {
    fail_usage("yoke export --to {} is not built yet in this version; use --to hf.",
               options.format == ExportFormat::peft ? "peft" : "gguf");
  }
  fs::path run;
  const auto checkpoint = open_source(options.source, &run);
  const fs::path recipe_file = run / "recipe.yaml";
  if (!fs::exists(recipe_file)) {
    fail_file("{}: is missing; it names the model and the tokenizer of the run.", recipe_file.string());
  }
  Recipe recipe = load_recipe(recipe_file).recipe;
  recipe.output = run.string();  // where the folder is now
  const HfConfig config = read_hf_config(recipe.model.path);
  if (!is_checkpoint_of(*checkpoint, config.model)) {
    fail_file("{}: is not a checkpoint of the model whose config is in {}.", checkpoint->path().string(),
              recipe.model.path);
  }
  const bool newest = fs::is_directory(fs::path(options.source) / "checkpoints");
  const fs::path folder = options.output ? fs::path(*options.output)
                          : newest       ? run / "model"
                                         : run / ("model-" + checkpoint->path().filename().string());
  HfModelOptions written{.dtype = compute_type(options.precision ? options.precision : recipe.train.precision)};
  const std::string tokenizer = recipe.model.tokenizer.value_or(recipe.model.path);
  written.carried = carried_files(recipe, tokenizer);
  const ParameterTable table(config.model);
  write_hf_model(Parallel::self(), folder, config.model, config.document, table, pieces_of(*checkpoint, table),
                 written);
  log::info("model of step {} written to {}", checkpoint->step(), folder.string());
  return 0;
}

}  // namespace yoke
