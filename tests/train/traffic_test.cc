// Bytes that ranks send in a step, by group, against closed forms, for every layout of up to eight ranks.
#include <map>

#include "tests/thread_ranks.h"
#include "tests/train/meshes.h"
#include "train/pipeline_schedule.h"
#include "train/pipeline_stages.h"

namespace yoke {
namespace {

/// Bytes by group; what isn't in it is zero.
using Bytes = std::map<Group, double>;

/// The closed forms of one rank's step. N replicas in S shards, R copies of each; t, p, c: tensor, pipeline, context; m
/// micro-batches; T tokens of a micro-batch here; h hidden size; w and g: bytes of a weight and of a gradient.
class ClosedForms {
 public:
  ClosedForms(const ModelConfig& config, const EngineOptions& options, int rank)
      : config_(config),
        o_(options),
        mesh_(options.mesh, rank),
        pieces_(options.mesh.pipeline == 1 ? ModelPart{}.pieces_of(config.layers)
                                           : pipeline_pieces(config, options.sequence_length, options.mesh.pipeline,
                                                             options.virtual_stages, mesh_.place().pipeline)),
        table_(config, {.tensor = {mesh_.place().tensor, options.mesh.tensor}, .pieces = pieces_}),
        shards_(options.zero > 0 ? options.mesh.shards() : 1),
        units_(table_, shards_),
        w_(static_cast<double>(size_of(options.compute))) {
    for (const ModelPiece& piece : pieces_) layers_ += static_cast<double>(piece.layers);
  }

  Bytes all() const {
    Bytes bytes;
    replicas(bytes);
    if (o_.mesh.tensor > 1) bytes[Group::tensor] = tensor();
    if (o_.mesh.pipeline > 1) bytes[Group::pipeline] = pipeline();
    if (o_.mesh.context > 1) bytes[Group::context] = context();
    const MeshPlace& place = mesh_.place();
    const bool end = place.pipeline == 0 || place.pipeline + 1 == o_.mesh.pipeline;
    if (config_.tied_embeddings && o_.mesh.pipeline > 1 && end)
      bytes[Group::ends] = owned(table_.embedding()) * g(true);
    return bytes;
  }

  /// Psi, a unit padded to a multiple of 512 elements a shard.
  double elements(bool in_layers, bool matrices) const {
    double sum = 0;
    for (size_t u = 0; u < units_.size(); ++u) {
      if ((units_[u].layer >= 0) == in_layers && units_[u].matrices == matrices)
        sum += static_cast<double>(units_[u].elements);
    }
    return sum;
  }

 private:
  static double others(int ranks) { return static_cast<double>(ranks - 1) / ranks; }
  double g(bool matrix) const { return matrix ? static_cast<double>(size_of(o_.gradients)) : 4; }
  double m() const { return static_cast<double>(o_.micro_batches); }
  double tokens() const { return static_cast<double>(o_.tokens()); }
  double h() const { return static_cast<double>(config_.hidden); }
  double owned(size_t row) const {
    const int shard = shards_ > 1 ? mesh_.place().replica(o_.mesh) % shards_ : 0;
    return static_cast<double>(units_.owned(row, shard).size());
  }

  void replicas(Bytes& bytes) const {
    const int n = o_.mesh.replicas(), copies = n / shards_;
    if (n == 1) return;
    const double gradients = (elements(true, true) + elements(false, true)) * g(true) +
                             (elements(true, false) + elements(false, false)) * g(false);
    if (shards_ == 1) {  // 2 Psi (N - 1) / N
      bytes[Group::replicas] = 2 * others(n) * gradients;
      return;
    }
    const double layer_weights = (elements(true, true) + elements(true, false)) * w_;
    const double outside_weights = (elements(false, true) + elements(false, false)) * w_;
    // ZeRO-1 scatters once a step, 2 and 3 once a micro-batch; 3 gathers layers as passes need them.
    const double scatters = o_.zero == 1 ? 1 : m();
    const double gathers =
        o_.zero < 3 ? layer_weights + outside_weights : outside_weights + layers_gathered() / layers_ * layer_weights;
    bytes[Group::shard] = others(shards_) * (scatters * gradients + gathers + 2 * squares());
    if (copies > 1) bytes[Group::replicate] = 2 * others(copies) * gradients / shards_;
  }

  /// Of each row's gradient, in f64.
  double squares() const { return 8 * static_cast<double>(table_.size()); }

  /// Forward and backward of a micro-batch gather every layer once, but for the two that the pass before left: layers
  /// take turns in two places.
  double layers_gathered() const {
    if (o_.mesh.pipeline == 1) return layers_ + (2 * m() - 1) * (layers_ - 2);
    double count = 0;
    std::map<int64_t, int64_t> place;
    const auto visit = [&](int64_t layer) {
      const auto at = place.find(layer % 2);
      if (at == place.end() || at->second != layer) ++count;
      place[layer % 2] = layer;
    };
    const PipelineWalk walk = pipeline_walk(o_.schedule, o_.pipeline());
    for (const PipelineAction& action : walk.ranks[static_cast<size_t>(mesh_.place().pipeline)]) {
      const ModelPiece& piece = pieces_[static_cast<size_t>(o_.pipeline().piece_of(action.stage))];
      for (int64_t i = 0; i < piece.layers; ++i) {
        if (action.work == PipelineWork::forward) visit(piece.first_layer + i);
        if (action.work == PipelineWork::backward || action.work == PipelineWork::backward_input)
          visit(piece.first_layer + piece.layers - 1 - i);
      }
    }
    return count;
  }

  /// A = (t - 1)/t T h w, half an all-reduce: 4 all-reduces a layer and micro-batch and what is gathered again.
  double tensor() const {
    const double a = others(o_.mesh.tensor) * tokens() * h() * w_;
    const double forward = 4, backward = 4;
    // For weight gradients the inputs of qkv and gate_up once more; a pass of its own gathers output gradients, too.
    const double again = o_.schedule == PipelineSchedule::zero_bubble && o_.mesh.pipeline > 1 ? 4 : 2;
    const double recompute = o_.recompute == Recompute::block                                         ? 3
                             : o_.recompute == Recompute::mlp || o_.recompute == Recompute::attention ? 1
                                                                                                      : 0;
    double bytes = m() * layers_ * (forward + backward + again + recompute) * a;
    if (pieces_.front().embeds) bytes += m() * 2 * a;
    if (pieces_.back().ends) bytes += m() * (2 * a + 32.0 * (o_.mesh.tensor - 1) * tokens());
    double partial = 0;  // norms see their rank's tokens: summed once a step
    for (size_t row = 0; row < table_.size(); ++row) {
      if (table_[row].kind == ParameterRow::Kind::norm) partial += owned(row);
    }
    return bytes + 2 * others(o_.mesh.tensor) * (partial * g(false) + squares());
  }

  /// b s h a boundary, micro-batch and direction, of which each tensor rank sends its slice.
  double pipeline() const {
    double boundaries = 0;
    for (const ModelPiece& piece : pieces_) boundaries += (piece.ends ? 0 : 1) + (piece.embeds ? 0 : 1);
    return m() * boundaries * tokens() / o_.mesh.tensor * h() * w_;
  }

  /// (c - 1)/c 2 b s k d w forward, twice that backward; the forward once more where attention is recomputed.
  double context() const {
    const double kd = static_cast<double>(config_.kv_size()) / o_.mesh.tensor;
    const double whole = static_cast<double>(o_.micro_batch * o_.sequence_length);
    const double passes = o_.recompute == Recompute::block || o_.recompute == Recompute::attention ? 4 : 3;
    return m() * layers_ * passes * others(o_.mesh.context) * whole * 2 * kd * w_;
  }

  const ModelConfig& config_;
  const EngineOptions& o_;
  Mesh mesh_;
  std::vector<ModelPiece> pieces_;
  ParameterTable table_;
  int shards_;
  ParameterUnits units_;
  double w_, layers_ = 0;
};

void expect_bytes(const StepTraffic& traffic, const Bytes& expected) {
  for (size_t g = 0; g < kGroups; ++g) {
    const auto at = expected.find(static_cast<Group>(g));
    const double bytes = at == expected.end() ? 0 : at->second;
    EXPECT_NEAR(traffic[g].bytes, bytes, 1e-9 * bytes) << kGroupNames[g];
  }
}

struct Variant {
  EngineOptions options;
  bool tied = false;
};

// What follows from a plan is what its dry run's communicators counted.
TEST(Traffic, IsTheClosedFormOfEveryLayout) {
  const Variant variants[] = {
      {{.compute = DType::f32, .micro_batches = 3}},
      {{.compute = DType::bf16, .micro_batches = 5, .recompute = Recompute::block, .gradients = DType::bf16}, true},
      {{.compute = DType::bf16, .micro_batches = 2, .recompute = Recompute::mlp}},
      {{.compute = DType::f16, .micro_batches = 13, .recompute = Recompute::attention}}};
  size_t checked = 0;
  for (const Variant& variant : variants) {
    ModelConfig config = test::mesh_model();
    config.tied_embeddings = variant.tied;
    for (const EngineOptions& options : test::mesh_options(8, variant.options)) {
      SCOPED_TRACE(test::text_of(options));
      for (int stage = 0; stage < options.mesh.pipeline; ++stage) {
        const int rank = (stage + 1) * options.mesh.ranks() / options.mesh.pipeline - 1;  // the stage's last one
        const EnginePlan plan = plan_engine(Device::cpu(1), config, options, {}, rank);
        expect_bytes(plan.traffic, ClosedForms(config, options, rank).all());
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 1900u);
  fmt::print("{} ranks of layouts\n", checked);
}

// What a real step of ranks that are threads sends is what the plan says, to the byte.
TEST(Traffic, OfRealStepsIsThePlans) {
  const ModelConfig config = test::mesh_model();
  for (const EngineOptions& options : test::mesh_options(4)) {
    SCOPED_TRACE(test::text_of(options));
    test::run_ranks(options.mesh, [&](const Parallel& parallel) {
      const Device device = Device::cpu(1);
      const int rank = parallel.mesh().rank();
      const EnginePlan plan = plan_engine(device, config, options, {}, rank);
      const MemoryBlock block(plan.peak_bytes);
      Arena arena(block.data(), block.bytes());
      Stream stream;
      Context ctx{device, stream, arena};
      Engine engine(ctx, config, options, parallel);
      engine.initialise(ctx, 1);
      std::vector<Batch> batches;
      for (int64_t i = 0; i < options.micro_batches; ++i) batches.push_back(test::random_batch(2, 9, 3));
      for (int64_t step = 1; step <= 2; ++step) {
        for (size_t g = 0; g < kGroups; ++g) parallel[static_cast<Group>(g)].clear_traffic();
        engine.step(ctx, batches, {.learning_rate = 1e-3, .step = step});
        for (size_t g = 0; g < kGroups; ++g) {
          const Traffic& real = parallel[static_cast<Group>(g)].traffic();
          EXPECT_NEAR(plan.traffic[g].bytes, real.bytes, 1e-9 * real.bytes) << kGroupNames[g];
          EXPECT_EQ(plan.traffic[g].collectives, real.collectives) << kGroupNames[g];
        }
      }
    });
  }
}

// The figures that are quoted for such runs, on a model large enough that padding is nothing.
TEST(Traffic, IsWhatIsQuotedForALargeModel) {
  const ModelConfig config = test::tiny_model("Llama", {{"vocab_size", 32000},
                                                        {"hidden_size", 1024},
                                                        {"intermediate_size", 4096},
                                                        {"num_hidden_layers", 24},
                                                        {"num_attention_heads", 16},
                                                        {"num_key_value_heads", 16},
                                                        {"head_dim", 64}});
  const auto psi = 2 * static_cast<double>(config.parameters());  // bytes in bf16
  EngineOptions options{.compute = DType::bf16, .sequence_length = 32, .gradients = DType::bf16, .mesh = {.data = 8}};
  const auto sent = [&] {
    double sum = 0;
    for (const Traffic& t : plan_engine(Device::cpu(1), config, options).traffic) sum += t.bytes;
    return sum;
  };
  for (const auto& [zero, times] : {std::pair(0, 2.0), {1, 2.0}, {2, 2.0}, {3, 3.0}}) {
    options.zero = zero;
    // Two of 24 layers stay between forward and backward; embedding and head are gathered once.
    const double expected = times * 7 / 8 * psi;
    EXPECT_LE(sent(), 1.005 * expected) << zero;
    EXPECT_GE(sent(), (zero == 3 ? 0.88 : 0.995) * expected) << zero;
  }
}

}  // namespace
}  // namespace yoke
