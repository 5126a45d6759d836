// Tiny models, corpora and recipes for the tests of training.
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "checkpoint/hf_config.h"
#include "model/config.h"
#include "tests/checkpoint/scratch.h"
#include "train/engine_plan.h"

namespace yoke::test {

namespace fs = std::filesystem;

/// What config.json of a tiny model says; `family` as Hugging Face's architectures begin: Llama, Mistral, Qwen2, Qwen3.
inline nlohmann::json tiny_config(const std::string& family, const nlohmann::json& changes = {}) {
  std::string type = family;
  type[0] = static_cast<char>(std::tolower(type[0]));
  nlohmann::json config = {{"architectures", {family + "ForCausalLM"}},
                           {"model_type", type},
                           {"vocab_size", 259},
                           {"hidden_size", 32},
                           {"intermediate_size", 48},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"head_dim", 8},
                           {"max_position_embeddings", 64},
                           {"rms_norm_eps", 1e-5},
                           {"hidden_act", "silu"},
                           {"initializer_range", 0.1},
                           {"tie_word_embeddings", false},
                           {"bos_token_id", 256},
                           {"eos_token_id", 257}};
  if (!changes.is_null()) config.update(changes);
  return config;
}

inline ModelConfig tiny_model(const std::string& family, const nlohmann::json& changes = {}) {
  return parse_hf_config(tiny_config(family, changes).dump(), "config.json").model;
}

/// `bytes` bytes of sentences of a small vocabulary, the same for the same seed.
inline std::string tiny_text(size_t bytes, uint64_t seed = 1) {
  static constexpr const char* kWords[] = {"the", "cat", "sat", "on", "a", "mat", "and", "saw", "ten", "dogs", "run"};
  const RandomStream random{seed, 0};
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    text += kWords[random.word(i) % std::size(kWords)];
    text += i % 9 == 8 ? ".\n" : " ";
  }
  text.resize(bytes);
  return text;
}

inline constexpr int64_t kBatchLength = 32;

/// Random tokens, one document a row, `supervised` of its targets spread at random.
inline Batch random_batch(int64_t rows, int64_t supervised, uint64_t seed, int64_t length = kBatchLength) {
  Batch batch{.rows = rows, .length = length, .supervised = supervised};
  const RandomStream random{seed, 7};
  const auto size = static_cast<size_t>(rows * length);
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = size - 1; i > 0; --i) std::swap(order[i], order[random.word(size + i) % (i + 1)]);
  batch.targets.assign(size, Batch::kIgnore);
  for (size_t i = 0; i < size; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random.word(i) % 259));
    batch.positions.push_back(static_cast<int32_t>(i) % static_cast<int32_t>(length));
    batch.key_begin.push_back(0);
  }
  for (size_t i = 0; i < static_cast<size_t>(supervised); ++i) {
    batch.targets[order[i]] = static_cast<int32_t>(random.word(2 * size + i) % 259);
  }
  return batch;
}

/// An engine with exactly the memory that its plan asks for.
struct PlannedEngine {
  PlannedEngine(const ModelConfig& config, const EngineOptions& options, int threads = 1)
      : device(Device::cpu(threads)), plan(plan_engine(device, config, options)), block(plan.peak_bytes) {
    arena = Arena(block.data(), block.bytes());
    engine.emplace(ctx, config, options);
    engine->initialise(ctx, 1);
  }
  PlannedEngine(const PlannedEngine&) = delete;
  PlannedEngine& operator=(const PlannedEngine&) = delete;
  Engine* operator->() { return &*engine; }
  StepResult step(const std::vector<Batch>& batches, const UpdateOptions& update = {}) {
    return engine->step(ctx, batches, update);
  }

  Device device;
  EnginePlan plan;
  MemoryBlock block;
  Arena arena;
  Stream stream;
  Context ctx{device, stream, arena};
  std::optional<Engine> engine;
};

/// All bytes of all tensors, in order.
inline std::string bytes_of(const ParameterBuffers& buffers) {
  std::string bytes;
  for (size_t i = 0; i < buffers.size(); ++i) {
    bytes.append(static_cast<const char*>(buffers[i].data), buffers[i].bytes());
  }
  return bytes;
}

inline std::string bytes_of(const OptimizerState& state) {
  std::string bytes;
  for (const OptimizerState::Tensor& t : state.tensors()) {
    bytes.append(static_cast<const char*>(t.view.data), t.view.bytes());
  }
  return bytes;
}

/// Collects the program's log lines while it lives.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines_)));
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  ~LogCapture() { spdlog::set_default_logger(before_); }
  std::string text() const { return lines_.str(); }

 private:
  std::ostringstream lines_;
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace yoke::test
