// Files and configs of Python's safetensors and transformers; tests/oracle/checkpoint_oracle.py makes and checks them.
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_config.h"
#include "checkpoint/safetensors.h"
#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kFolder = YOKE_CHECKPOINT_ORACLE;

json expected() {
  if (!fs::exists(kFolder / "expected.json")) {
    throw std::runtime_error("the oracle's files are missing: run 'make test', or ctest without -E");
  }
  return json::parse(read_file(kFolder / "expected.json"));
}

TEST(CheckpointOracle, SafetensorsBothWays) {
  const json tensors = expected()["tensors"];
  const SafetensorsFile theirs(kFolder / "theirs.safetensors");
  EXPECT_EQ(theirs.tensors().size(), tensors.size());
  EXPECT_EQ(theirs.metadata(), (StoredMetadata{{"format", "pt"}, {"note", "\u00fc"}}));
  std::vector<SafetensorsWriter::Item> items;
  std::string data;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto name = tensors[i]["name"].get<std::string>();
    const StoredTensor* tensor = theirs.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(json(tensor->shape), tensors[i]["shape"]) << name;
    const std::string raw = read_file(kFolder / fmt::format("{}.bin", i));
    const auto bytes = theirs.bytes(*tensor);
    EXPECT_EQ(std::string(bytes.begin(), bytes.end()), raw) << name;
    ASSERT_TRUE(tensor->type->dtype.has_value()) << name;
    items.push_back({name, *tensor->type->dtype, tensor->shape});
    data += raw;
  }
  SafetensorsWriter ours(kFolder / "ours" / "ours.safetensors", items, {{"format", "pt"}});
  ours.write(data.data(), data.size());
  ours.commit();
}

std::string rope_type(const ModelConfig& model) {
  switch (model.rope_scaling.kind) {
    case RopeScaling::Kind::linear:
      return "linear";
    case RopeScaling::Kind::llama3:
      return "llama3";
    default:
      return "default";
  }
}

TEST(CheckpointOracle, ConfigsMeanWhatTransformersSays) {
  const json configs = expected()["configs"];
  int compared = 0;
  for (size_t i = 0; i < configs.size(); ++i) {
    const std::string text = configs[i]["document"].dump();
    const ModelConfig model = parse_hf_config(text, "config.json").model;
    const json written = make_hf_config(model, nullptr, DType::f32);  // from scratch, nothing of the original
    write_file(kFolder / "ours" / fmt::format("config-{}.json", i), written.dump());
    if (configs[i]["resolved"].is_null()) continue;
    const json resolved = {{"kv_heads", model.kv_heads},
                           {"head_dim", model.head_dim},
                           {"max_positions", model.max_positions},
                           {"norm_epsilon", model.norm_epsilon},
                           {"rope_theta", model.rope_theta},
                           {"rope_factor", model.rope_scaling.factor},
                           {"rope_type", rope_type(model)},
                           {"tied", model.tied_embeddings},
                           {"window", model.sliding_window},
                           {"first_window", model.first_sliding_layer},
                           {"initializer_range", model.initializer_range},
                           {"bos", model.bos ? json(*model.bos) : json()},
                           {"eos", model.eos}};
    EXPECT_EQ(resolved, configs[i]["resolved"]) << text;
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

}  // namespace
}  // namespace yoke
