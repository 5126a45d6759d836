#include "checkpoint/hf_model.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_config.h"
#include "checkpoint/layout.h"
#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::Scratch;

ModelConfig tiny(Architecture architecture, bool tied) {
  ModelConfig c{.architecture = architecture,
                .vocabulary = 50,
                .hidden = 16,
                .layers = 2,
                .heads = 4,
                .kv_heads = 2,
                .head_dim = 6,
                .mlp = 20,
                .max_positions = 64,
                .tied_embeddings = tied};
  c.qkv_bias = architecture == Architecture::qwen2;
  c.qk_norm = architecture == Architecture::qwen3;
  return c;
}

/// All rows of a model in memory, as 16-bit or 32-bit patterns from a fixed generator (NaNs among them).
struct Memory {
  std::vector<std::vector<uint8_t>> bytes;
  DType dtype;

  Memory(const ParameterTable& table, DType dtype, bool fill) : dtype(dtype) {
    uint64_t x = 88172645463325252u;
    for (const ParameterRow& row : table.rows()) {
      auto& data = bytes.emplace_back(static_cast<size_t>(row.shape.elements()) * size_of(dtype));
      for (uint8_t& b : data) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        b = fill ? static_cast<uint8_t>(x >> 32) : 0xee;
      }
    }
  }
  TensorView view(const ParameterTable& table, size_t row) {
    return TensorView(bytes[row].data(), dtype, table[row].shape);
  }
  RowView views(const ParameterTable& table) {
    return [&](size_t row) { return view(table, row); };
  }
};

void read_all(const WeightReader& reader, const ParameterTable& table, Memory* memory) {
  for (size_t row = 0; row < table.size(); ++row) reader.read(row, memory->view(table, row));
}

std::map<std::string, std::string> stored(const fs::path& folder) {
  std::map<std::string, std::string> tensors;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const StoredTensor& t : file.tensors()) {
      const auto bytes = file.bytes(t);
      tensors[t.name] = t.str() + std::string(bytes.begin(), bytes.end());
    }
  }
  return tensors;
}

/// A model.safetensors with these tensors.
void write_raw(const fs::path& folder, const std::vector<SafetensorsWriter::Item>& items, const std::string& data) {
  fs::create_directories(folder);
  SafetensorsWriter writer(folder / "model.safetensors", items, {});
  writer.write(data.data(), data.size());
  writer.commit();
}

// Case 15: no row moves and no bit changes between the file and memory, whatever the family and the cut into shards.
TEST(HfModel, RoundTripIsByteIdentical) {
  for (const Architecture architecture :
       {Architecture::llama, Architecture::mistral, Architecture::qwen2, Architecture::qwen3}) {
    for (const bool tied : {false, true}) {
      const Scratch scratch(Scratch::Where::memory);
      const ModelConfig config = tiny(architecture, tied);
      const ParameterTable table(config);
      Memory first(table, DType::bf16, true), second(table, DType::bf16, false);
      write_hf_model(scratch / "a", config, nullptr, table, first.views(table), {.dtype = DType::bf16});
      EXPECT_EQ(read_hf_config(scratch / "a").model, config);
      const WeightReader reader(scratch / "a", table);
      EXPECT_EQ(reader.dtype(), DType::bf16);
      read_all(reader, table, &second);
      EXPECT_EQ(first.bytes, second.bytes);
      const auto original = stored(scratch / "a");
      for (const uint64_t shard_bytes : {uint64_t{tied ? 700u : 1u}, uint64_t{4000}}) {
        HfModelOptions options{.dtype = DType::bf16, .shard_bytes = shard_bytes};
        const auto document = read_hf_config(scratch / "a").document;
        write_hf_model(scratch / "b", config, document, table, second.views(table), options);
        EXPECT_EQ(stored(scratch / "b"), original);
        EXPECT_TRUE(fs::exists(scratch / "b" / "model.safetensors.index.json"));
        Memory third(table, DType::bf16, false);
        read_all(WeightReader(scratch / "b", table), table, &third);
        EXPECT_EQ(first.bytes, third.bytes);
      }
      EXPECT_EQ(read_file(scratch / "a" / "config.json"), read_file(scratch / "b" / "config.json"));
    }
  }
}

TEST(HfModel, PartsAreTheRowsOfFusedTensors) {
  const Scratch scratch;
  const ModelConfig config = tiny(Architecture::llama, false);
  const ParameterTable table(config);
  Memory memory(table, DType::f32, true);
  write_hf_model(scratch / "m", config, nullptr, table, memory.views(table), {.dtype = DType::f32});
  const auto tensors = stored(scratch / "m");
  const auto& qkv = memory.bytes[table.first_of_layer(1) + 1];
  const std::string all(qkv.begin(), qkv.end());
  const std::string prefix = "model.layers.1.self_attn.";
  EXPECT_EQ("F32 [24, 16]" + all.substr(0, 24 * 64), tensors.at(prefix + "q_proj.weight"));
  EXPECT_EQ("F32 [12, 16]" + all.substr(24 * 64, 12 * 64), tensors.at(prefix + "k_proj.weight"));
  EXPECT_EQ("F32 [12, 16]" + all.substr(36 * 64), tensors.at(prefix + "v_proj.weight"));
}

// Each rank's boxes of the files are its part of the whole model, whatever range of them is asked for.
TEST(HfModel, RanksReadTheirBoxes) {
  for (const Architecture architecture : {Architecture::llama, Architecture::qwen2, Architecture::qwen3}) {
    const Scratch scratch(Scratch::Where::memory);
    ModelConfig config = tiny(architecture, false);
    config.vocabulary = 51;  // padded on two ranks
    const ParameterTable table(config);
    Memory memory(table, DType::bf16, true);
    write_hf_model(scratch / "m", config, nullptr, table, memory.views(table), {.dtype = DType::bf16});
    const WeightReader reader(scratch / "m", table);
    for (int rank = 0; rank < 2; ++rank) {
      const ParameterTable local(config, {.tensor = {rank, 2}});
      for (size_t row = 0; row < local.size(); ++row) {
        const ParameterRow& spec = local[row];
        const int64_t cols = spec.shape_cols(), whole_cols = table[row].shape_cols();
        std::vector<uint16_t> expected(static_cast<size_t>(spec.shape.elements()), 0xeeee), found = expected;
        const auto* whole = reinterpret_cast<const uint16_t*>(memory.bytes[row].data());
        for (const ParameterPart& part : spec.parts) {
          for (int64_t i = 0; i < part.rows * cols; ++i) {
            const int64_t at = (part.whole_row + i / cols) * whole_cols + spec.first_col + i % cols;
            expected[static_cast<size_t>(part.row * cols + i)] = whole[at];
          }
        }
        const int64_t cut = spec.shape.elements() / 3;
        for (const FlatRange range : {FlatRange{0, cut}, FlatRange{cut, spec.shape.elements()}}) {
          for (const FlatPiece& piece : flat_pieces(layout_of(spec), range)) {
            reader.read(row, piece.region,
                        TensorView(&found[static_cast<size_t>(piece.begin)], DType::bf16, piece.region.shape));
          }
        }
        EXPECT_EQ(found, expected) << spec.name;
      }
    }
  }
}

TEST(HfModel, ConvertsEveryFloatType) {
  const Scratch scratch;
  const ModelConfig config = tiny(Architecture::llama, true);
  const ParameterTable table(config);
  Memory memory(table, DType::f32, true);
  for (auto& row : memory.bytes) {
    for (size_t i = 0; i < row.size() / 4; ++i) {
      const float value = std::ldexp(static_cast<float>(i % 997) - 498.25f, static_cast<int>(i % 9) - 9);
      std::memcpy(row.data() + 4 * i, &value, 4);
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const fs::path folder = scratch / std::string(name_of(dtype));
    write_hf_model(folder, config, nullptr, table, memory.views(table), {.dtype = dtype});
    const WeightReader reader(folder, table);
    for (const DType target : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const size_t row = table.first_of_layer(0) + 1;
      const Shape shape = table[row].shape;
      // A view with a wider stride, as a range of columns is.
      std::vector<double> wide(static_cast<size_t>(shape[0] * (shape[1] + 3)), -1.0);
      TensorView view(wide.data(), target, shape);
      view.row_stride = shape[1] + 3;
      reader.read(row, view);
      for (int64_t i = 0; i < shape.elements(); ++i) {
        float exact;
        std::memcpy(&exact, memory.bytes[row].data() + 4 * i, 4);
        const int64_t at = i / shape[1] * view.row_stride + i % shape[1];
        const double got = target == DType::f64   ? view.as<double>()[at]
                           : target == DType::f32 ? view.as<float>()[at]
                           : target == DType::f16 ? to_float(view.as<f16>()[at])
                                                  : to_float(view.as<bf16>()[at]);
        const bool coarse = dtype == DType::bf16 || target == DType::bf16;
        const double epsilon = coarse ? 0x1p-8 : dtype == DType::f16 || target == DType::f16 ? 0x1p-11 : 0;
        EXPECT_NEAR(got, exact, std::abs(exact) * epsilon * 1.01);
      }
    }
  }
}

TEST(HfModel, NamesEverythingThatDoesNotFit) {
  const Scratch scratch;
  const ModelConfig config = tiny(Architecture::llama, false);
  ModelConfig other = config;
  other.mlp = 22;
  other.layers = 3;
  const ParameterTable table(config), other_table(other);
  Memory memory(table, DType::bf16, true);
  write_hf_model(scratch / "m", config, nullptr, table, memory.views(table), {});
  const std::string larger = error_of([&] { WeightReader(scratch / "m", other_table); });
  EXPECT_CONTAINS(larger, "missing: model.layers.2.input_layernorm.weight, model.layers.2.self_attn.q_proj.weight");
  EXPECT_CONTAINS(larger, "wrong shape: model.layers.0.mlp.gate_proj.weight is [20, 16] instead of [22, 16]");
  ModelConfig fewer = config;
  fewer.layers = 1;
  const ParameterTable fewer_table(fewer);
  const std::string smaller = error_of([&] { WeightReader(scratch / "m", fewer_table); });
  EXPECT_CONTAINS(smaller, "unexpected: 'model.layers.1.input_layernorm.weight'");
  EXPECT_CONTAINS(error_of([&] { WeightReader(scratch.path(), table); }), "has neither model.safetensors nor");
  write_file(scratch / "pytorch_model.bin", "x");
  EXPECT_CONTAINS(error_of([&] { WeightReader(scratch.path(), table); }), "converted to safetensors");
}

/// Copies a folder's tensors with changes; the data of added tensors is `extra`.
void rewrite(const fs::path& from, const fs::path& to, const std::string& drop,
             const std::vector<SafetensorsWriter::Item>& added, const std::string& extra) {
  const SafetensorsFile file(from / "model.safetensors");
  std::vector<SafetensorsWriter::Item> items;
  std::string data;
  for (const StoredTensor& t : file.tensors()) {
    if (t.name == drop) continue;
    items.push_back({t.name, *t.type->dtype, t.shape});
    const auto bytes = file.bytes(t);
    data.append(bytes.begin(), bytes.end());
  }
  items.insert(items.end(), added.begin(), added.end());
  write_raw(to, items, data + extra);
}

TEST(HfModel, TiedHeadAndRotaryBuffers) {
  const Scratch scratch;
  const ModelConfig config = tiny(Architecture::llama, true);
  const ParameterTable table(config);
  Memory memory(table, DType::bf16, true), got(table, DType::bf16, false);
  write_hf_model(scratch / "m", config, nullptr, table, memory.views(table), {});
  const std::string embedding(memory.bytes[0].begin(), memory.bytes[0].end());
  const SafetensorsWriter::Item head{"lm_head.weight", DType::bf16, {50, 16}};
  const SafetensorsWriter::Item rotary{"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {3}};

  rewrite(scratch / "m", scratch / "equal", "", {head, rotary}, embedding + std::string(12, 'r'));
  read_all(WeightReader(scratch / "equal", table), table, &got);
  EXPECT_EQ(got.bytes, memory.bytes);

  Memory moved(table, DType::bf16, false);
  rewrite(scratch / "m", scratch / "moved", "model.embed_tokens.weight", {head}, embedding);
  read_all(WeightReader(scratch / "moved", table), table, &moved);
  EXPECT_EQ(moved.bytes, memory.bytes);

  std::string different = embedding;
  different.back() = static_cast<char>(different.back() ^ 1);
  rewrite(scratch / "m", scratch / "different", "", {head}, different);
  EXPECT_CONTAINS(error_of([&] { WeightReader(scratch / "different", table); }), "tie_word_embeddings: true");

  const ParameterTable untied(tiny(Architecture::llama, false));
  EXPECT_CONTAINS(error_of([&] { WeightReader(scratch / "m", untied); }), "config.json has to say tie_word_embeddings");

  rewrite(scratch / "m", scratch / "int", "model.norm.weight", {{"model.norm.weight", DType::i32, {16}}},
          std::string(64, '\0'));
  EXPECT_CONTAINS(error_of([&] { WeightReader(scratch / "int", table); }), "wrong type: model.norm.weight is I32");
}

TEST(HfModel, IndexFaults) {
  const Scratch scratch;
  const ModelConfig config = tiny(Architecture::llama, true);
  const ParameterTable table(config);
  Memory memory(table, DType::bf16, true);
  write_hf_model(scratch / "m", config, nullptr, table, memory.views(table), {.shard_bytes = 2000});
  const fs::path index = scratch / "m" / "model.safetensors.index.json";
  const auto good = nlohmann::json::parse(read_file(index));
  const auto fails = [&](const std::string& text, const char* message) {
    write_file(index, text);
    EXPECT_CONTAINS(error_of([&] { WeightReader(scratch / "m", table); }), message);
  };
  const auto with = [&](const nlohmann::json& file) {
    auto changed = good;
    changed["weight_map"]["model.norm.weight"] = file;
    return changed.dump();
  };
  fails("{", "not valid JSON");
  fails("{\"weight_map\": 3}", "has no weight_map");
  fails(with("../other.safetensors"), "legal are names of .safetensors files");
  fails(with("/etc/passwd"), "legal are names of .safetensors files");
  fails(with(3), "legal are names of .safetensors files");
  fails(with("model-00099.safetensors"), "model-00099.safetensors. Complete the download");
  fails(with("model-00001-of-" + good["weight_map"]["model.norm.weight"].get<std::string>().substr(15)),
        "'model.norm.weight' in model-00001");
}

TEST(HfModel, CarriesFilesAndWritesTheRest) {
  const Scratch scratch;
  ModelConfig config = tiny(Architecture::qwen2, true);
  config.eos = {3, 4};
  const ParameterTable table(config);
  Memory memory(table, DType::bf16, true);
  write_file(scratch / "tokenizer.json", "{}");
  write_hf_model(scratch / "m" / "", config, nullptr, table, memory.views(table),
                 {.carried = {scratch / "tokenizer.json"}});
  EXPECT_EQ(read_file(scratch / "m" / "tokenizer.json"), "{}");
  const auto generation = nlohmann::json::parse(read_file(scratch / "m" / "generation_config.json"));
  EXPECT_EQ(generation["eos_token_id"], (nlohmann::json{3, 4}));
  EXPECT_EQ(nlohmann::json::parse(read_file(scratch / "m" / "config.json"))["torch_dtype"], "bfloat16");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 2);
  write_file(scratch / "generation_config.json", "{\"top_k\": 3}");
  write_hf_model(scratch / "m", config, nullptr, table, memory.views(table),
                 {.carried = {scratch / "tokenizer.json", scratch / "generation_config.json"}});
  EXPECT_EQ(read_file(scratch / "m" / "generation_config.json"), "{\"top_k\": 3}");
}

TEST(HfModel, NeverDeletesWhatIsNotAModel) {
  const Scratch scratch;
  const ModelConfig config = tiny(Architecture::llama, true);
  const ParameterTable table(config);
  Memory memory(table, DType::bf16, true);
  fs::create_directory(scratch / "m");
  write_file(scratch / "m" / "thesis.tex", "years of work");
  const auto save = [&] { write_hf_model(scratch / "m", config, nullptr, table, memory.views(table), {}); };
  EXPECT_CONTAINS(error_of(save), "holds 'thesis.tex'");
  EXPECT_EQ(read_file(scratch / "m" / "thesis.tex"), "years of work");
  fs::remove(scratch / "m" / "thesis.tex");
  save();
  save();
}

TEST(HfModel, AFailedWriteLeavesTheOldModel) {
  const Scratch scratch;
  const ModelConfig config = tiny(Architecture::llama, true);
  const ParameterTable table(config);
  Memory memory(table, DType::bf16, true);
  write_hf_model(scratch / "m", config, nullptr, table, memory.views(table), {});
  const auto before = stored(scratch / "m");
  const RowView failing = [&](size_t row) -> TensorView {
    if (row == 5) fail_file("the disk is full");
    return memory.view(table, row);
  };
  error_of([&] { write_hf_model(scratch / "m", config, nullptr, table, failing, {}); });
  EXPECT_EQ(stored(scratch / "m"), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 1);
}

// Case 18: bytes that change between writing and reading back must be noticed, in every tensor of every shard.
TEST(HfModel, ReadBackFindsEveryChangedTensor) {
  const Scratch scratch;
  const ModelConfig config = tiny(Architecture::qwen3, false);
  const ParameterTable table(config);
  Memory memory(table, DType::bf16, true);
  const fs::path unfinished = scratch / ".m.unfinished";
  // While the last row is asked for, all earlier shards are on the disk: harm one of them.
  for (int shard = 1; shard <= 3; ++shard) {
    const RowView harming = [&](size_t row) {
      if (row + 1 == table.size()) {
        for (const auto& entry : fs::directory_iterator(unfinished)) {
          if (!entry.path().filename().string().starts_with(fmt::format("model-0000{}", shard))) continue;
          std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
          file.seekg(-1, std::ios::end);
          const auto last = static_cast<char>(file.get() ^ 1);
          file.seekp(-1, std::ios::end);
          file.put(last);
        }
      }
      return memory.view(table, row);
    };
    const std::string error =
        error_of([&] { write_hf_model(scratch / "m", config, nullptr, table, harming, {.shard_bytes = 2500}); });
    EXPECT_CONTAINS(error, "has other bytes");
    EXPECT_CONTAINS(error, fmt::format("model-0000{}", shard));
    EXPECT_TRUE(fs::is_empty(scratch.path()));
  }
}

}  // namespace
}  // namespace yoke
