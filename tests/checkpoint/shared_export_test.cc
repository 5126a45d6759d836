// Several ranks, each a process, write one model folder from what each holds, and read one.
#include <sys/resource.h>

#include <cstring>
#include <fstream>

#include "base/file.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_model.h"
#include "tests/checkpoint/layouts.h"
#include "tests/checkpoint/process_ranks.h"
#include "tests/checkpoint/scratch.h"

namespace yoke::test {
namespace {

namespace fs = std::filesystem;

ModelConfig tiny(Architecture architecture, bool tied) {
  ModelConfig c{.architecture = architecture,
                .vocabulary = 53,  // a prime: every tensor-parallel size pads it
                .hidden = 24,
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

/// Any fp32 pattern, a function of row and place.
float value(size_t row, int64_t i) {
  const uint32_t bits = static_cast<uint32_t>(i * 2654435761u) ^ static_cast<uint32_t>(row * 40503u);
  return std::ldexp(static_cast<float>(bits % 100003) - 50001, static_cast<int>(bits % 11) - 20);
}

std::vector<float> whole_row(const ParameterTable& table, size_t row) {
  std::vector<float> values(static_cast<size_t>(table[row].shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = value(row, static_cast<int64_t>(i));
  return values;
}

/// How a rank holds a row: parts of fused matrices by rows, what follows them by columns, norms whole.
InventedRank held_by(const ParameterTable& table, size_t row, const Mesh& mesh) {
  const ParameterRow& spec = table[row];
  std::mt19937_64 random(1);
  InventedTensor tensor(random);
  tensor.global = spec.shape;
  tensor.parts.clear();
  for (const ParameterPart& part : spec.parts) tensor.parts.push_back(part.rows);
  const bool columns = spec.name.ends_with(".output") || spec.name.ends_with(".down");
  const int axis = spec.kind == ParameterRow::Kind::norm ? 2 : columns ? 1 : 0;
  const MeshSizes& sizes = mesh.sizes();
  const int64_t copies = sizes.replicas() / sizes.shards();
  const auto ranks = tensor.split(sizes.tensor, axis, sizes.shards(), copies, 16).ranks;
  const int replica = mesh.place().replica(sizes), shard = replica % sizes.shards(), copy = replica / sizes.shards();
  return ranks[static_cast<size_t>((mesh.place().tensor * sizes.shards() + shard) * copies + copy)];
}

std::vector<WeightPiece> pieces_of(const ParameterTable& table, const Mesh& mesh, std::vector<float>* buffer) {
  std::vector<WeightPiece> pieces;
  for (size_t row = 0; row < table.size(); ++row) {
    const InventedRank rank = held_by(table, row, mesh);
    for (const FlatPiece& piece : flat_pieces(rank.layout, rank.written)) {
      pieces.push_back({row, piece.region, [&table, row, region = piece.region, buffer] {
                          const std::vector<float> all = whole_row(table, row);
                          buffer->resize(static_cast<size_t>(region.shape.elements()));
                          for_each_run(region, Region::whole(table[row].shape),
                                       [&](int64_t to, int64_t from, int64_t n) {
                                         std::copy_n(all.begin() + from, n, buffer->begin() + to);
                                       });
                          return TensorView(buffer->data(), DType::f32, region.shape);
                        }});
    }
  }
  return pieces;
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

void write_whole(const fs::path& folder, const ModelConfig& config, const HfModelOptions& options) {
  const ParameterTable table(config);
  std::vector<float> row;
  const RowView view = [&](size_t r) {
    row = whole_row(table, r);
    return TensorView(row.data(), DType::f32, table[r].shape);
  };
  write_hf_model(folder, config, nullptr, table, view, options);
}

const std::vector<MeshSizes> kMeshes = {{.data = 3},
                                        {.tensor = 2},
                                        {.data = 2, .tensor = 2},
                                        {.data = 2, .context = 2, .shard = 2},
                                        {.data = 2, .shard = 1}};

TEST(SharedExport, SameBytesAsFromOneRank) {
  for (const Architecture architecture : {Architecture::llama, Architecture::qwen2, Architecture::qwen3}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Scratch scratch(Scratch::Where::memory);
      const ModelConfig config = tiny(architecture, architecture == Architecture::qwen2);
      const ParameterTable table(config);
      for (const uint64_t shard_bytes : {uint64_t{3000}, uint64_t{5'000'000'000}}) {
        const HfModelOptions options{.dtype = dtype, .shard_bytes = shard_bytes};
        write_whole(scratch / "one", config, options);
        const auto want = files_of(scratch / "one");
        for (const MeshSizes& sizes : kMeshes) {
          const auto ends = run_ranks(sizes, [&](const Parallel& p) {
            std::vector<float> buffer;
            write_hf_model(p, scratch / "many", config, nullptr, table, pieces_of(table, p.mesh(), &buffer), options);
          });
          for (const RankEnd& end : ends) EXPECT_TRUE(end.status == 0 && end.code == 0) << end.message;
          EXPECT_TRUE(files_of(scratch / "many") == want) << sizes.data << " x " << sizes.tensor;
        }
      }
    }
  }
}

TEST(SharedExport, AnyRankReadsWhatItHolds) {
  const Scratch scratch(Scratch::Where::memory);
  const ModelConfig config = tiny(Architecture::qwen2, false);
  const ParameterTable table(config);
  for (const DType stored : {DType::f32, DType::bf16}) {
    write_whole(scratch / "one", config, {.dtype = stored, .shard_bytes = 3000});
    const WeightReader reader(scratch / "one", table);
    for (const MeshSizes& sizes : kMeshes) {
      for (int r = 0; r < sizes.ranks(); ++r) {
        for (size_t row = 0; row < table.size(); ++row) {
          std::vector<float> all(static_cast<size_t>(table[row].shape.elements()));
          reader.read(row, TensorView(all.data(), DType::f32, table[row].shape));
          const InventedRank rank = held_by(table, row, Mesh(sizes, r));
          for (const FlatPiece& piece : flat_pieces(rank.layout, rank.held)) {
            std::vector<float> got(static_cast<size_t>(piece.region.shape.elements()));
            reader.read(row, piece.region, TensorView(got.data(), DType::f32, piece.region.shape));
            for_each_run(piece.region, Region::whole(table[row].shape), [&](int64_t to, int64_t from, int64_t n) {
              EXPECT_EQ(std::memcmp(got.data() + to, all.data() + from, static_cast<size_t>(n) * 4), 0);
            });
          }
        }
      }
    }
  }
}

/// All ranks end with one message, and the old model is still there.
void expect_failed(const std::vector<RankEnd>& ends, const Scratch& scratch, const std::string& part,
                   const std::map<std::string, std::string>& before) {
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.status, 0);
    EXPECT_EQ(end.code, 4) << end.message;
    EXPECT_CONTAINS(end.message, part);
    EXPECT_EQ(end.message, ends[0].message);
  }
  EXPECT_TRUE(files_of(scratch / "m") == before);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 1);
}

// Case 18: what changes between writing and reading back is noticed by another rank than wrote it.
TEST(SharedExport, ReadBackFindsWhatChanged) {
  const Scratch scratch(Scratch::Where::memory);
  const ModelConfig config = tiny(Architecture::llama, false);
  const ParameterTable table(config);
  const MeshSizes sizes{.data = 2, .tensor = 2};
  write_whole(scratch / "m", config, {});
  const auto before = files_of(scratch / "m");
  for (int victim = 0; victim < sizes.ranks(); ++victim) {
    const auto ends = run_ranks(sizes, [&](const Parallel& p) {
      std::vector<float> buffer;
      auto pieces = pieces_of(table, p.mesh(), &buffer);
      // Before the last piece is written, one bit of the first changes on the disk.
      const auto view = pieces.back().view;
      pieces.back().view = [&] {
        if (p.mesh().rank() == victim) {
          const Region& first = pieces.front().region;
          const std::string header = read_file(scratch / ".m.unfinished" / "model.safetensors").substr(0, 8);
          uint64_t data = 0;
          std::memcpy(&data, header.data(), 8);
          const int64_t index = index_in(Region::whole(table[0].shape), first.offset);
          std::fstream file(scratch / ".m.unfinished" / "model.safetensors",
                            std::ios::in | std::ios::out | std::ios::binary);
          const auto at = static_cast<std::streamoff>(8 + data) + index * 2;
          file.seekg(at);
          const auto changed = static_cast<char>(file.get() ^ 1);
          file.seekp(at);
          file.put(changed);
        }
        return view();
      };
      write_hf_model(p, scratch / "m", config, nullptr, table, pieces, {});
    });
    const int reader = (victim + sizes.ranks() - 1) % sizes.ranks();
    expect_failed(ends, scratch, fmt::format("rank {} on host ", reader), before);
    EXPECT_CONTAINS(ends[0].message, "model.embed_tokens.weight has other bytes");
  }
}

TEST(SharedExport, ARankThatCannotWrite) {
  const Scratch scratch(Scratch::Where::memory);
  const ModelConfig config = tiny(Architecture::llama, false);
  const ParameterTable table(config);
  write_whole(scratch / "m", config, {});
  const auto before = files_of(scratch / "m");
  ::signal(SIGXFSZ, SIG_IGN);
  for (int victim = 0; victim < 2; ++victim) {
    const auto ends = run_ranks({.data = 2}, [&](const Parallel& p) {
      const rlimit limited{3000, 3000};
      if (p.mesh().rank() == victim) ::setrlimit(RLIMIT_FSIZE, &limited);
      std::vector<float> buffer;
      write_hf_model(p, scratch / "m", config, nullptr, table, pieces_of(table, p.mesh(), &buffer), {});
    });
    expect_failed(ends, scratch, fmt::format("rank {} on host ", victim), before);
  }
}

}  // namespace
}  // namespace yoke::test
