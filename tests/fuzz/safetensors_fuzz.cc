// 100,000 damaged safetensors files and 100,000 damaged config.json documents, all in memory and from a fixed seed.
// Each must be read or end in a UserError (bad_file) with a message of bounded length; the sanitizers watch the rest.
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/safetensors.h"

namespace yoke {
namespace {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }

  /// One to four changes: bytes, numbers, structure, pieces moved, doubled, taken from another document, cut off.
  std::string mutate(std::string text, const std::string& other) {
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(&text, other);
    return text;
  }

 private:
  void change(std::string* text, const std::string& other) {
    static const std::vector<std::string> tokens = {"0",
                                                    "-1",
                                                    "1",
                                                    "2",
                                                    "4294967296",
                                                    "9223372036854775807",
                                                    "9223372036854775808",
                                                    "18446744073709551615",
                                                    "1e308",
                                                    "1e999",
                                                    "0.5",
                                                    "-0",
                                                    "null",
                                                    "true",
                                                    "false",
                                                    "\"\"",
                                                    "\"x\"",
                                                    "[]",
                                                    "{}",
                                                    "[1]",
                                                    "[[",
                                                    "{\"a\":",
                                                    "]",
                                                    "}",
                                                    ",",
                                                    ":",
                                                    "\"",
                                                    "\\u0000",
                                                    "\\ud800",
                                                    "\xff",
                                                    "\xc3\xa9",
                                                    "F64",
                                                    "F4",
                                                    "__metadata__",
                                                    "data_offsets",
                                                    "shape",
                                                    "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2},",
                                                    "\"layer_types\":[\"full_attention\"],",
                                                    "\"use_sliding_window\":true,",
                                                    "llama3",
                                                    "Qwen2ForCausalLM",
                                                    "MistralForCausalLM",
                                                    "NaN"};
    const size_t at = below(text->size() + 1), length = below(text->size() - at + 1) % 40;
    switch (below(9)) {
      case 0:
        if (!text->empty()) (*text)[below(text->size())] = static_cast<char>(random_());
        return;
      case 1:
        if (!text->empty()) (*text)[below(text->size())] ^= static_cast<char>(1 << below(8));
        return;
      case 2:
        text->insert(at, tokens[below(tokens.size())]);
        return;
      case 3:
        replace_number(text, at, tokens[below(12)]);
        return;
      case 4:
        replace_number(text, at, std::to_string(below(64)));
        return;
      case 5:
        text->erase(at, length);
        return;
      case 6:
        text->insert(below(text->size() + 1), text->substr(at, length));
        return;
      case 7:
        text->insert(at, other.substr(below(other.size()), 1 + below(40)));
        return;
      default:
        if (below(8) == 0) text->resize(at);
        if (below(64) == 0) text->insert(at, std::string(1 + below(5000), below(2) ? '[' : '{'));
        return;
    }
  }

  static void replace_number(std::string* text, size_t at, const std::string& number) {
    const size_t begin = text->find_first_of("0123456789", at);
    if (begin == text->npos) return;
    const size_t end = text->find_first_not_of("0123456789", begin);
    text->replace(begin, (end == text->npos ? text->size() : end) - begin, number);
  }

  std::mt19937_64 random_;
};

struct Tally {
  int read = 0, refused = 0;

  /// Counts what `action` did; ends the program when it was neither.
  template <class Action>
  void count(const std::string& input, Action action) {
    try {
      action();
      ++read;
      return;
    } catch (const UserError& error) {
      ++refused;
      const std::string_view message = error.what();
      if (error.code() == ExitCode::bad_file && message.size() < 5000) return;
      fmt::print(stderr, "exit code {} or a message of {} bytes", static_cast<int>(error.code()), message.size());
    } catch (const std::exception& error) {
      fmt::print(stderr, "not a UserError: {}", error.what());
    }
    fmt::print(stderr, " for this input of {} bytes:\n{}\n", input.size(), input);
    std::exit(1);
  }
};

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

std::string with_length(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

/// What is accepted covers the data without holes, and every byte of it can be touched.
void read_safetensors(const std::string& file) {
  const std::vector<char> exact(file.begin(), file.end());  // so that one byte too far is seen
  const SafetensorsHeader header = parse_safetensors({exact.data(), exact.size()}, exact.size(), "fuzz");
  uint64_t position = header.data_begin;
  unsigned sum = 0;
  for (const StoredTensor& tensor : header.tensors) {
    require(header.data_begin + tensor.begin == position, "a hole");
    require(static_cast<uint64_t>(tensor.elements()) * static_cast<uint64_t>(tensor.type->bits) == 8 * tensor.bytes(),
            "a size that isn't the shape's");
    for (; position < header.data_begin + tensor.end; ++position) sum += static_cast<unsigned char>(exact[position]);
  }
  require(position == exact.size() && sum < UINT32_MAX, "bytes of no tensor");
}

void fuzz_safetensors(int inputs) {
  const std::pair<std::string, size_t> seeds[] = {
      {R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
       R"("b":{"dtype":"BF16","shape":[5],"data_offsets":[24,34]},"c":{"dtype":"U8","shape":[],"data_offsets":[34,35]}})",
       35},
      {R"({"x":{"dtype":"I64","shape":[0,4],"data_offsets":[0,0]},"y":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}  )",
       2},
      {"{}", 0},
      {R"({"w":{"shape":[1,1,1,1,8],"data_offsets":[0,16],"dtype":"F16"}})", 16},
  };
  Mutator mutator(1);
  Tally tally;
  for (int i = 0; i < inputs; ++i) {
    const auto& [header, bytes] = seeds[mutator.below(std::size(seeds))];
    const std::string& other = seeds[mutator.below(std::size(seeds))].first;
    const std::string data(bytes, 'd');
    // Mostly the header alone, with its length kept right; else the whole file.
    const std::string file = mutator.below(5) != 0 ? with_length(mutator.mutate(header, other), data)
                                                   : mutator.mutate(with_length(header, data), other);
    tally.count(file, [&] { read_safetensors(file); });
  }
  fmt::print("safetensors: {} inputs, {} read, {} refused\n", inputs, tally.read, tally.refused);
}

void fuzz_config(int inputs) {
  const std::string seeds[] = {
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":128256,"hidden_size":2048,)"
      R"("intermediate_size":8192,"num_hidden_layers":16,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,)"
      R"("rms_norm_eps":1e-05,"rope_theta":500000.0,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,)"
      R"("low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},"tie_word_embeddings":true,)"
      R"("bos_token_id":128000,"eos_token_id":[128001,128008],"mlp_bias":false,"pretraining_tp":1,"torch_dtype":"bfloat16"})",
      R"({"architectures":["MistralForCausalLM"],"vocab_size":32000,"hidden_size":64,"intermediate_size":96,)"
      R"("num_hidden_layers":2,"num_attention_heads":8,"sliding_window":16,"hidden_act":"silu","attention_dropout":0.0})",
      R"({"model_type":"qwen2","vocab_size":99,"hidden_size":64,"intermediate_size":96,"num_hidden_layers":3,)"
      R"("num_attention_heads":32,"use_sliding_window":true,"max_window_layers":1,"sliding_window":8,)"
      R"("layer_types":["full_attention","sliding_attention","sliding_attention"],"use_mrope":false})",
      R"({"architectures":["Qwen3ForCausalLM"],"vocab_size":99,"hidden_size":64,"intermediate_size":96,)"
      R"("num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":128,"attention_bias":false,)"
      R"("rope_parameters":{"rope_type":"default","rope_theta":1000000},"eos_token_id":null})",
  };
  Mutator mutator(2);
  Tally tally;
  for (int i = 0; i < inputs; ++i) {
    const std::string text =
        mutator.mutate(seeds[mutator.below(std::size(seeds))], seeds[mutator.below(std::size(seeds))]);
    tally.count(text, [&] {
      const HfConfig config = parse_hf_config(text, "fuzz");
      config.model.validate();
      const auto document = make_hf_config(config.model, nullptr, DType::bf16);
      require(parse_hf_config(document.dump(), "fuzz").model == config.model, "a model that doesn't round-trip");
    });
  }
  fmt::print("config.json: {} inputs, {} read, {} refused\n", inputs, tally.read, tally.refused);
}

}  // namespace
}  // namespace yoke

int main() {
  spdlog::set_level(spdlog::level::off);
  yoke::fuzz_safetensors(100'000);
  yoke::fuzz_config(100'000);
}
