// One training pass of a tiny model, on one rank or on the ranks of a mesh's tensor axis, with its weights and
// gradients laid out as the whole model's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "device/transfer.h"
#include "model/transformer.h"
#include "ops/elementwise/elementwise.h"

namespace yoke::test {

/// A model of two layers whose vocabulary no small number of ranks divides.
inline ModelConfig small_model(int64_t kv_heads = 2) {
  return {.vocabulary = 259,
          .hidden = 32,
          .layers = 2,
          .heads = 4,
          .kv_heads = kv_heads,
          .head_dim = 8,
          .mlp = 48,
          .max_positions = 64,
          .initializer_range = 0.2};
}

inline constexpr Recompute kRecompute[] = {Recompute::none, Recompute::norms, Recompute::mlp, Recompute::attention,
                                           Recompute::block};

struct NamedModel {
  std::string name;
  ModelConfig config;
};

/// Every architecture with its options; each fits two ranks, those with four key/value heads four as well.
inline std::vector<NamedModel> models() {
  std::vector<NamedModel> all{
      {"Llama", small_model()},     {"LlamaTied", small_model()},  {"LlamaFour", small_model(4)},
      {"Mistral", small_model(4)},  {"Qwen2", small_model()},      {"Qwen2Four", small_model(4)},
      {"Qwen3", small_model()},     {"Qwen3Tied", small_model(4)}, {"DividedVocabulary", small_model(4)},
      {"FiveWords", small_model(4)}};
  for (NamedModel& m : all) {
    ModelConfig& c = m.config;
    c.tied_embeddings = m.name.ends_with("Tied");
    if (m.name == "Mistral") {
      c.architecture = Architecture::mistral;
      c.sliding_window = 6;
    }
    if (m.name.starts_with("Qwen2")) {
      c.architecture = Architecture::qwen2;
      c.qkv_bias = true;
    }
    if (m.name.starts_with("Qwen3")) {
      c.architecture = Architecture::qwen3;
      c.qk_norm = true;
    }
    if (m.name == "DividedVocabulary") c.vocabulary = 260;
    if (m.name == "FiveWords") c.vocabulary = 5;  // on four ranks the last one has nothing but padding
  }
  return all;
}

struct PassOptions {
  DType compute = DType::f32;
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = -1;
  int64_t rows = 2, length = 16;
  int64_t micro_batches = 2;
  int64_t chunk = 7;
  int64_t tokens() const { return rows * length; }
};

struct PassResult {
  std::vector<float> losses;                  ///< of every token of every micro-batch
  std::vector<std::vector<float>> gradients;  ///< [row] as in the whole model's table
  std::vector<std::vector<float>> values;     ///< weights, the same way
  std::vector<std::vector<float>> local;      ///< gradients of this rank's tensors
  size_t peak = 0;                            ///< bytes of arena
  Traffic traffic;                            ///< of the tensor axis, in forward and backward
};

/// A machine with memory, or none on the dry device.
struct RankMemory {
  explicit RankMemory(bool dry)
      : device(dry ? Device::dry(Device::cpu(1)) : Device::cpu(1)), block(dry ? 0 : size_t{16} << 20) {
    if (!dry) arena = Arena(block.data(), block.bytes());
  }
  Device device;
  MemoryBlock block;
  Arena arena;
  Stream stream;
  Context ctx{device, stream, arena};
};

/// Puts a rank's part of a row where it belongs in the whole model's row.
inline void place(const ParameterRow& row, const std::vector<float>& local, std::vector<float>& whole) {
  whole.resize(static_cast<size_t>(row.whole.elements()), NAN);
  const int64_t cols = row.shape_cols(), whole_cols = row.whole.rank() == 1 ? 1 : row.whole.cols();
  for (const ParameterPart& part : row.parts) {
    for (int64_t i = 0; i < part.rows * cols; ++i) {
      const int64_t at = (part.whole_row + i / cols) * whole_cols + row.first_col + i % cols;
      whole[static_cast<size_t>(at)] = local[static_cast<size_t>(part.row * cols + i)];
    }
  }
}

/// This rank's part of values that are a function of the place in the whole model, without any help of the model's:
/// matrices normal with 0.2, norms about 1, biases about 0; padding 0.
inline std::vector<float> local_values(const ParameterRow& row) {
  std::vector<float> values(static_cast<size_t>(row.shape.elements()), 0);
  const int64_t cols = row.shape_cols(), whole_cols = row.whole.rank() == 1 ? 1 : row.whole.cols();
  const RandomStream random{99, row.id};
  for (const ParameterPart& part : row.parts) {
    for (int64_t i = 0; i < part.rows * cols; ++i) {
      const int64_t at = (part.whole_row + i / cols) * whole_cols + row.first_col + i % cols;
      const double base = row.kind == ParameterRow::Kind::norm ? 1 : 0;
      values[static_cast<size_t>(part.row * cols + i)] =
          static_cast<float>(base + 0.2 * random.normal(static_cast<uint64_t>(at)));
    }
  }
  return values;
}

inline DeviceBatch upload_batch(Context& ctx, const DeviceBatch& memory, const PassOptions& o, int64_t vocabulary,
                                uint64_t number) {
  const auto count = static_cast<size_t>(o.tokens());
  std::vector<int32_t> tokens(count), targets(count), positions(count), key_begin(count);
  const RandomStream random{7, number};
  for (size_t i = 0; i < count; ++i) {
    const auto at = static_cast<int32_t>(i % static_cast<size_t>(o.length));
    const int32_t begin = at >= 5 && i >= static_cast<size_t>(o.length) ? 5 : 0;  // two documents in later rows
    tokens[i] = static_cast<int32_t>(random.word(2 * i) % static_cast<uint64_t>(vocabulary));
    targets[i] = i % 5 == 3 ? -100 : static_cast<int32_t>(random.word(2 * i + 1) % static_cast<uint64_t>(vocabulary));
    positions[i] = at - begin;
    key_begin[i] = begin;
  }
  targets[0] = static_cast<int32_t>(vocabulary) - 1;  // beside the padding
  return memory.upload(ctx, o.rows, o.length, tokens, targets, positions, key_begin);
}

/// Forward, loss and backward of all micro-batches. `parallel`: null for one rank.
inline PassResult run_pass(const ModelConfig& config, const PassOptions& o, const Parallel* parallel,
                           bool dry = false) {
  RankMemory memory(dry);
  Context& ctx = memory.ctx;
  Communicator* tensor = parallel == nullptr ? nullptr : &(*parallel)[Group::tensor];
  Transformer model(config, o.compute, o.recompute, o.recompute_layers, {.tensor = shard_of(tensor)}, parallel);
  const ParameterTable& table = model.parameters();
  const ParameterBuffers weights(ctx.arena, "weight", table, o.compute, MemoryKind::weights);
  const ParameterBuffers gradients(ctx.arena, "gradient", table, DType::f32, MemoryKind::gradients);
  for (size_t i = 0; i < table.size(); ++i) {
    ArenaScope scope(ctx.arena);
    const std::vector<float> values = local_values(table[i]);
    const TensorView exact = ctx.arena.allocate("values", DType::f32, table[i].shape);
    upload(ctx, std::span<const float>(values), exact);
    convert(ctx, {.x = exact, .y = weights[i]});
  }
  WeightStore weight_store(weights);
  GradientStore store(gradients);
  store.begin_step(ctx, o.micro_batches);
  const DeviceBatch batch(ctx.arena, o.rows, o.length);
  const TensorView losses = ctx.arena.allocate("losses", DType::f32, {o.tokens()}, MemoryKind::loss);
  model.prepare_positions(ctx, o.length);
  if (tensor != nullptr) tensor->clear_traffic();

  PassResult result;
  for (int64_t m = 0; m < o.micro_batches; ++m) {
    ArenaScope scope(ctx.arena);
    const DeviceBatch view = upload_batch(ctx, batch, o, config.vocabulary, static_cast<uint64_t>(m));
    MicroBatchMemory kept = model.allocate(ctx.arena, o.tokens(), false);
    model.forward(ctx, view, weight_store, kept);
    model.loss(ctx, view, weight_store, kept, {.chunk = o.chunk, .scale = 0.0625f}, losses, &store, kept.final_norm);
    model.backward(ctx, view, weight_store, store, kept, kept.final_norm);
    const std::vector<float> host = downloaded<float>(ctx, losses);
    result.losses.insert(result.losses.end(), host.begin(), host.end());
  }
  result.peak = ctx.arena.peak();
  if (tensor != nullptr) result.traffic = tensor->traffic();
  for (size_t i = 0; i < table.size() && !dry; ++i) {
    if (table[i].partial_over_tensor) {
      tensor->run(ctx, {.kind = CollectiveKind::all_reduce, .input = gradients[i], .what = "norm gradients"});
    }
    result.local.push_back(downloaded<float>(ctx, gradients[i]));
    place(table[i], result.local[i], result.gradients.emplace_back());
  }
  return result;
}

/// |a - b| / |b|
inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double x = a[i], y = b[i];
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

}  // namespace yoke::test
