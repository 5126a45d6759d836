// Moments in 16 and 8 bits train as well as fp32 ones, on real text: Debian's bible-kjv.
#include <cstdio>

#include "tests/train/run_support.h"

namespace yoke::test {
namespace {

/// What the program `bible` prints of some verses, without their places.
std::string verses(const std::string& range) {
  std::string text;
  FILE* pipe = ::popen(("bible -f " + range).c_str(), "r");
  if (pipe == nullptr) return text;
  char line[4096];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const char* verse = std::strchr(line, ' ');
    if (verse != nullptr) text += verse + 1;
  }
  ::pclose(pipe);
  return text;
}

class Moments : public RunTest {};

TEST_F(Moments, TrainAsWellInFewerBits) {
  write_file(folder_ / "train.txt", verses("gen1:1-num36:13"));
  write_file(folder_ / "held.txt", verses("mar1:1-mar16:20"));
  ASSERT_GT(fs::file_size(folder_ / "train.txt"), 500'000u) << "the package bible-kjv has to be installed";
  write_config("model", {{"hidden_size", 96},
                         {"intermediate_size", 256},
                         {"num_hidden_layers", 3},
                         {"num_attention_heads", 6},
                         {"num_key_value_heads", 2},
                         {"head_dim", 16},
                         {"initializer_range", 0.05}});
  const auto loss_with = [&](const std::string& moments) {
    const Ending ending = run({{"memory.moments", moments},
                               {"output", at(moments)},
                               {"train.steps", "200"},
                               {"train.micro_batch", "8"},
                               {"train.global_batch", "8"},
                               {"data.sequence_length", "64"},
                               {"train.learning_rate", "3e-3"},
                               {"train.warmup", "20"},
                               {"checkpoint.every", "0"},
                               {"evaluate.every", "0"},
                               {"threads", "1"}});
    EXPECT_EQ(ending.code, 0) << ending.message << ending.log;
    const nlohmann::json last = metrics_of(folder_ / moments).back();
    EXPECT_EQ(last.at("step"), 200);
    const double loss = last.at("validation_loss");
    RecordProperty("validation_loss_" + moments, std::to_string(loss));
    return loss;
  };
  const double want = loss_with("fp32");
  EXPECT_LT(want, 2.6) << "well below the 3.0 of single letters' frequencies";
  for (const std::string moments : {"bf16", "int8"}) {
    const double got = loss_with(moments);
    EXPECT_NEAR(got, want, 0.005 * want) << moments;
    EXPECT_NE(got, want) << moments << " moments were not used";
  }
}

}  // namespace
}  // namespace yoke::test
