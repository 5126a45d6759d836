// What is rounded at random doesn't depend on how ranks divide a tensor: tensor-parallel parts and their shards, beside
// the whole tensor's update with the same gradients, bit for bit.
#include <cstring>

#include "model/units.h"
#include "tests/train/support.h"
#include "train/optimizer.h"

namespace yoke {
namespace {

/// A tensor of the whole model, or a rank's, with memory of its own.
struct Tensor {
  std::vector<std::byte> bytes;
  TensorView view;
  Tensor(DType dtype, const Shape& shape) : bytes(static_cast<size_t>(shape.elements()) * size_of(dtype)) {
    view = {bytes.data(), dtype, shape};
  }
};

/// Where element `i` of a rank's tensor stands in the whole one; -1: padding.
int64_t place(const ParameterRow& row, int64_t i) {
  const int64_t local = i / row.shape_cols(), whole_cols = row.whole.rank() == 1 ? 1 : row.whole.cols();
  for (const ParameterPart& part : row.parts) {
    if (local < part.row || local >= part.row + part.rows) continue;
    return (part.whole_row + local - part.row) * whole_cols + row.first_col + i % row.shape_cols();
  }
  return -1;
}

/// Weights without a master and moments, all bf16.
struct Updated {
  std::vector<Tensor> tensors;
};

/// An update of elements [begin, begin + n) of a row, whose values are given by their place in the whole tensor.
Updated update(const Optimizer& optimizer, const ParameterRow& row, int64_t begin, int64_t n) {
  const Device device = Device::cpu(1);
  const MemoryBlock block(size_t{1} << 16);
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  Updated updated;
  const Shape shape{n};
  updated.tensors.emplace_back(DType::bf16, shape);
  for (const StateRow& state : optimizer.state(row, shape)) updated.tensors.emplace_back(state.dtype, state.shape);
  Tensor gradient(DType::f32, shape);
  const auto value = [&](uint64_t stream_number, int64_t i) {
    const int64_t at = place(row, begin + i);
    return at < 0 ? 0.0f : static_cast<float>(RandomStream{7, stream_number}.normal(static_cast<uint64_t>(at)));
  };
  for (int64_t i = 0; i < n; ++i) {
    for (size_t t = 0; t < updated.tensors.size(); ++t) {
      const float x = value(t, i);
      updated.tensors[t].view.as<bf16>()[i] = from_float<bf16>(t < 2 ? x : x * x);
    }
    gradient.view.as<float>()[i] = value(9, i);
  }
  std::vector<TensorView> state;
  for (size_t t = 1; t < updated.tensors.size(); ++t) state.push_back(updated.tensors[t].view);
  const UpdateOptions options{.learning_rate = 1e-2, .weight_decay = 0.1, .step = 3, .seed = 5};
  optimizer.update(ctx, {.parameter = row,
                         .weights = {updated.tensors[0].view, {}},
                         .gradient = gradient.view,
                         .state = state,
                         .options = options,
                         .random = {options.seed, update_stream(options.step, row.id), static_cast<uint64_t>(begin)}});
  return updated;
}

TEST(RandomPlaces, PartsAreUpdatedAsTheWholeIs) {
  const nlohmann::json sizes = {{"vocab_size", 101},        {"bos_token_id", 1},     {"eos_token_id", 2},
                                {"num_attention_heads", 8}, {"hidden_size", 72},     {"intermediate_size", 1200},
                                {"num_key_value_heads", 8}, {"num_hidden_layers", 1}};
  int64_t compared = 0;
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    const auto optimizer = make_optimizer({.kind = kind, .moments = MomentsFormat::bf16});
    for (const char* family : {"Qwen2", "Qwen3"}) {
      const ModelConfig config = test::tiny_model(family, sizes);
      const ParameterTable whole(config);
      std::vector<Updated> want;
      for (const ParameterRow& row : whole.rows()) {
        want.push_back(update(*optimizer, row, 0, row.shape.elements()));
      }
      for (const int tensor : {2, 4, 8}) {
        for (const int shards : {1, 3}) {
          for (int rank = 0; rank < tensor; ++rank) {
            const ParameterTable table(config, {.tensor = {rank, tensor}});
            const ParameterUnits units(table, shards);
            for (size_t r = 0; r < table.size(); ++r) {
              for (int shard = 0; shard < shards; ++shard) {
                const ElementRange range = units.owned(r, shard);
                if (range.size() == 0) continue;
                const Updated got = update(*optimizer, table[r], range.begin, range.size());
                int64_t differing = 0;
                for (int64_t i = 0; i < range.size(); ++i) {
                  const int64_t at = place(table[r], range.begin + i);
                  for (size_t t = 0; t < got.tensors.size(); ++t) {
                    const uint16_t bits = got.tensors[t].view.as<bf16>()[i].bits;
                    differing += bits != (at < 0 ? 0 : want[r].tensors[t].view.as<bf16>()[at].bits);
                    ++compared;
                  }
                }
                EXPECT_EQ(differing, 0) << family << ", " << table[r].name << ", rank " << rank << " of " << tensor
                                        << ", shard " << shard << " of " << shards;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 1000000);
}

}  // namespace
}  // namespace yoke
