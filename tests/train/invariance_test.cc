// Every legal layout of up to 8 ranks against one rank with the same global batch: gradients, their norm, the first
// clipped update and ten losses, of tiny models of every family. Layouts are what nested loops over all sizes find and
// the recipe's own checks let through; the list is printed, and what was refused, with the reason.
#include <chrono>
#include <cstdlib>

#include "tests/train/invariance_support.h"
#include "train/mesh_choice.h"
#include "train/recipe_check.h"
#include "train/recipe_words.h"
#include "train/run_setup.h"

namespace yoke {
namespace {

using test::Distances;
using test::LayoutJob;
using test::LayoutRun;

constexpr int kMostRanks = 8;
constexpr int64_t kSteps = 10, kFewSteps = 2;

struct Family {
  std::string name;
  ModelConfig config;
};

/// 101 ids, which no tensor axis divides, and heads x head_dim other than hidden.
std::vector<Family> families() {
  const nlohmann::json eight = {{"vocab_size", 101},
                                {"bos_token_id", 1},
                                {"eos_token_id", 2},
                                {"num_attention_heads", 8},
                                {"num_hidden_layers", 8},
                                {"num_key_value_heads", 8},
                                {"max_position_embeddings", 48}};
  const auto with = [&](const char* family, nlohmann::json changes) {
    nlohmann::json all = eight;
    all.update(changes);
    return test::tiny_model(family, all);
  };
  return {
      {"Llama", with("Llama", nlohmann::json::object())},
      {"Llama, tied, kv 2, 4 layers",
       with("Llama", {{"tie_word_embeddings", true}, {"num_key_value_heads", 2}, {"num_hidden_layers", 4}})},
      {"Mistral, window 9, kv 4, 4 layers",
       with("Mistral", {{"sliding_window", 9}, {"num_key_value_heads", 4}, {"num_hidden_layers", 4}})},
      {"Mistral, window 24, tied, 4 layers",
       with("Mistral", {{"sliding_window", 24}, {"tie_word_embeddings", true}, {"num_hidden_layers", 4}})},
      {"Qwen2, tied, 6 heads",
       with("Qwen2", {{"tie_word_embeddings", true}, {"num_attention_heads", 6}, {"num_key_value_heads", 6}})},
      {"Qwen2, window 7 from layer 2 on, kv 2, 4 layers", with("Qwen2", {{"use_sliding_window", true},
                                                                         {"sliding_window", 7},
                                                                         {"max_window_layers", 2},
                                                                         {"num_key_value_heads", 2},
                                                                         {"num_hidden_layers", 4}})},
      {"Qwen3, tied", with("Qwen3", {{"tie_word_embeddings", true}})},
      {"Qwen3, kv 2, 4 layers", with("Qwen3", {{"num_key_value_heads", 2}, {"num_hidden_layers", 4}})},
  };
}

struct Layout {
  MeshSizes mesh;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int virtual_stages = 1;
  int zero = 0;

  std::string text() const {
    std::string text =
        fmt::format("data {} context {} pipeline {} tensor {}", mesh.data, mesh.context, mesh.pipeline, mesh.tensor);
    if (mesh.pipeline > 1) {
      text += fmt::format(", {}", word_of<PipelineSchedule>(schedule, kPipelineScheduleWords));
      if (virtual_stages > 1) text += fmt::format(" {}", virtual_stages);
    }
    text += fmt::format(", zero {}", zero);
    if (mesh.shard > 0 && mesh.shard < mesh.replicas()) text += fmt::format(" in {}", mesh.shard);
    return text;
  }
};

/// What a layout runs with.
struct Variant {
  Recompute recompute = Recompute::none;
  std::optional<int64_t> recompute_layers;
  int64_t accumulation = 1;  ///< micro-batches of a rank
  std::string text() const {
    std::string text = fmt::format("recompute {}", word_of<Recompute>(recompute, kRecomputeWords));
    if (recompute_layers) text += fmt::format(" of {} layers", *recompute_layers);
    return text + fmt::format(", {} micro-batches", accumulation);
  }
};

/// What a recipe with this layout and variant makes of the engine, by all the checks that a recipe goes through.
EngineOptions options_of(const Layout& layout, const Variant& variant, const ModelConfig& config,
                         const MemoryRecipe& memory = {}, Precision precision = Precision::fp32) {
  static const LoadedRecipe kBase = parse_recipe("model: {path: m}\ndata: {train: t}\ntrain: {steps: 10}\n", "layout");
  LoadedRecipe loaded = kBase;
  Recipe& recipe = loaded.recipe;
  recipe.data.sequence_length = test::kInvarianceLength;
  recipe.train.micro_batch = test::kInvarianceRows;
  recipe.train.global_batch = test::kInvarianceRows * variant.accumulation * layout.mesh.data;
  recipe.train.precision = precision;
  recipe.memory = memory;
  recipe.memory.recompute = variant.recompute;
  recipe.memory.recompute_layers = variant.recompute_layers;
  recipe.parallel = {.data = layout.mesh.data,
                     .zero = layout.zero,
                     .tensor = layout.mesh.tensor,
                     .pipeline = layout.mesh.pipeline,
                     .context = layout.mesh.context,
                     .schedule = layout.schedule,
                     .virtual_stages = layout.virtual_stages};
  if (layout.mesh.shard > 0) recipe.parallel.shard = layout.mesh.shard;
  check_recipe(loaded, loaded.name);
  EngineOptions options =
      engine_options(recipe, config, compute_type(precision), mesh_sizes(loaded, layout.mesh.ranks()));
  options.evaluates = true;
  return options;
}

/// A pipeline of one rank has no schedule; ZeRO of one replica, or in shards of one rank, shards nothing; shards over
/// all replicas are the default: further names of layouts that are there anyway.
bool has_other_name(const Layout& layout) {
  const MeshSizes& mesh = layout.mesh;
  const bool sharded = layout.zero > 0 && mesh.shards() > 1;
  return (mesh.pipeline == 1 && (layout.schedule != PipelineSchedule::one_f_one_b || layout.virtual_stages > 1)) ||
         (!sharded && (layout.zero > 0 || mesh.shard > 0)) || mesh.shard == mesh.replicas();
}

/// All of up to 8 ranks, of every schedule with 1 and 2 virtual stages, ZeRO stage and shard size.
std::vector<Layout> all_layouts() {
  std::vector<Layout> all;
  const auto add = [&](const MeshSizes& mesh, PipelineSchedule schedule, int virtual_stages) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (int shard = 0; shard <= mesh.replicas(); ++shard) {
        Layout layout{mesh, schedule, virtual_stages, zero};
        layout.mesh.shard = shard;
        if (!has_other_name(layout)) all.push_back(layout);
      }
    }
  };
  for (int d = 1; d <= kMostRanks; ++d) {
    for (int c = 1; d * c <= kMostRanks; ++c) {
      for (int p = 1; d * c * p <= kMostRanks; ++p) {
        for (int t = 1; d * c * p * t <= kMostRanks; ++t) {
          for (const auto& [schedule, word] : kPipelineScheduleWords) {
            for (const int virtual_stages : {1, 2}) add({d, c, p, t}, schedule, virtual_stages);
          }
        }
      }
    }
  }
  return all;
}

struct Layouts {
  std::map<size_t, Layout> legal;          ///< by number in all_layouts()
  std::map<std::string, int64_t> refused;  ///< reason to how often
};

Layouts layouts_of(const ModelConfig& config) {
  static const std::vector<Layout> kAll = all_layouts();
  Layouts found;
  for (size_t i = 0; i < kAll.size(); ++i) {
    try {
      options_of(kAll[i], {}, config);
      found.legal.emplace(i, kAll[i]);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      ++found.refused[error.what()];
    }
  }
  return found;
}

/// One line a mesh, and why others were refused.
void print(const Layouts& layouts) {
  std::map<std::string, std::string> meshes;
  for (const auto& [number, layout] : layouts.legal) {
    const std::string text = layout.text();
    const size_t comma = text.find(", ");
    meshes[text.substr(0, comma)] += "; " + text.substr(comma + 2);
  }
  for (const auto& [mesh, all] : meshes) fmt::print("  {}{}\n", mesh, all);
  for (const auto& [why, times] : layouts.refused) fmt::print("  refused {} times: {}\n", times, why);
}

/// Settings by turns, such that neighbouring layouts have different ones and every layout gets others in every family.
Variant variant_of(size_t number, int64_t layers) {
  static constexpr Recompute kRecompute[] = {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::attention,
                                             Recompute::block};
  Variant variant{.recompute = kRecompute[number % 5], .accumulation = 1 + static_cast<int64_t>(number % 3)};
  if (number % 2 == 1 && variant.recompute != Recompute::none) variant.recompute_layers = layers / 2 + 1;
  return variant;
}

UpdateOptions update_options() {
  // A first update by Adam is about the gradient's sign: its epsilon has to be above the rounding of small gradients.
  return {.learning_rate = 3e-3, .epsilon = 1e-5, .weight_decay = 0.1, .clip_norm = 0.5};
}

/// Runs of one rank, each made once.
class References {
 public:
  explicit References(const ModelConfig& config) : config_(config) {}
  const LayoutRun& of(int64_t micro_batches) {
    auto [at, is_new] = runs_.try_emplace(micro_batches);
    if (is_new) {
      const EngineOptions options = options_of({}, {.accumulation = micro_batches}, config_);
      at->second = test::run_layout({config_, options, kSteps, update_options()});
      EXPECT_TRUE(at->second.faults.empty()) << fmt::format("{}", fmt::join(at->second.faults, "\n"));
      EXPECT_GT(at->second.steps[0].gradient_norm, update_options().clip_norm);
    }
    return at->second;
  }

 private:
  const ModelConfig& config_;
  std::map<int64_t, LayoutRun> runs_;
};

/// YOKE_INVARIANCE=all runs every layout of every family with every recomputation, accumulation and ten steps.
bool everything() {
  const char* text = std::getenv("YOKE_INVARIANCE");
  return text != nullptr && std::string(text) == "all";
}

/// AddressSanitizer is after memory, not numbers, and slow: each layout runs in one of its families, for a few steps.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Invariance : public testing::TestWithParam<size_t> {};

/// What a layout runs with in this family: by turns, or everything.
std::vector<Variant> variants_of(size_t number, const ModelConfig& config) {
  if (!everything()) return {variant_of(number, config.layers)};
  std::vector<Variant> all;
  for (size_t i = 0; i < 30; ++i) all.push_back(variant_of(i, config.layers));
  return all;
}

/// Every layout has ten steps in one of the families that it is legal in, and two in the others.
bool has_all_steps(size_t number, size_t family) {
  static const std::vector<Layouts> kFamilies = [] {
    std::vector<Layouts> all;
    for (const Family& f : families()) all.push_back(layouts_of(f.config));
    return all;
  }();
  std::vector<size_t> legal;
  for (size_t f = 0; f < kFamilies.size(); ++f) {
    if (kFamilies[f].legal.count(number) > 0) legal.push_back(f);
  }
  return everything() || legal[number % legal.size()] == family;
}

TEST_P(Invariance, EveryLayoutIsOneRanks) {
  const Family family = families()[GetParam()];
  const Layouts layouts = layouts_of(family.config);
  fmt::print("{}: {} layouts\n", family.name, layouts.legal.size());
  if (GetParam() == 0) print(layouts);
  References references(family.config);
  Distances worst;
  int64_t runs = 0, long_runs = 0;
  double slowest = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& [number, layout] : layouts.legal) {
    const bool chosen = has_all_steps(number, GetParam()), all_steps = chosen && !kSanitized;
    if (kSanitized && !chosen) continue;
    for (const Variant& variant : variants_of(number + GetParam(), family.config)) {
      SCOPED_TRACE(fmt::format("{}; {}; {}", family.name, layout.text(), variant.text()));
      const LayoutRun& want = references.of(variant.accumulation * layout.mesh.data);
      const auto one = std::chrono::steady_clock::now();
      const LayoutRun got = test::run_layout({family.config, options_of(layout, variant, family.config),
                                              all_steps ? kSteps : kFewSteps, update_options()});
      slowest = std::max(slowest, std::chrono::duration<double>(std::chrono::steady_clock::now() - one).count());
      for (const std::string& fault : got.faults) ADD_FAILURE() << fault;
      const Distances d = distances(got, want);
      worst.widen(d);
      ++runs;
      long_runs += all_steps;
      EXPECT_LE(d.worst_gradient, 1e-5) << d.worst_tensor;
      EXPECT_LE(d.norm, 1e-5);
      EXPECT_LE(d.update, 1e-5);
      EXPECT_LE(d.loss, 1e-4);
      EXPECT_LE(d.evaluation, 1e-4);
      for (size_t s = 0; s < got.steps.size(); ++s) EXPECT_EQ(got.steps[s].supervised, want.steps[s].supervised);
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("  {} runs, {} of ten steps, {:.1f} s, the slowest {:.2f} s\n  {}\n", runs, long_runs, seconds, slowest,
             worst.text());
}

INSTANTIATE_TEST_SUITE_P(Families, Invariance, testing::Range<size_t>(0, families().size()));

}  // namespace
}  // namespace yoke
