#include "train/pipeline_stages.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace yoke {

PipelineCosts pipeline_costs(const ModelConfig& c, int64_t sequence_length) {
  const auto h = static_cast<double>(c.hidden), q = static_cast<double>(c.q_size());
  const double weights = h * static_cast<double>(c.qkv_size()) + q * h + 3 * h * static_cast<double>(c.mlp);
  return {.embedding = 0,
          .layer = 2 * weights + 2 * static_cast<double>(sequence_length) * q,
          .head = 2 * h * static_cast<double>(c.vocabulary)};
}

std::vector<int64_t> balance_layers(int64_t layers, int64_t stages, const PipelineCosts& costs) {
  YOKE_ASSERT(stages > 0 && costs.layer > 0);
  if (stages > layers) {
    fail_usage(
        "parallel.pipeline x parallel.virtual_stages are {} stages, but the model has {} layer{}, and each stage needs "
        "one; 1 to {} stages are legal.",
        stages, layers, layers == 1 ? "" : "s", layers);
  }
  // Between first and last, stages are alike: those get `each` layers or one more, the later ones more. What is left to
  // choose is how many layers the two ends have.
  const auto cost = [&](int64_t stage, int64_t count) {
    return static_cast<double>(count) * costs.layer + (stage == 0 ? costs.embedding : 0) +
           (stage + 1 == stages ? costs.head : 0);
  };
  std::vector<int64_t> best;
  double best_most = INFINITY, best_squares = INFINITY;
  const auto consider = [&](const std::vector<int64_t>& cut) {
    double most = 0, squares = 0;
    for (int64_t s = 0; s < stages; ++s) {
      const double one = cost(s, cut[static_cast<size_t>(s)]);
      most = std::max(most, one);
      squares += one * one;
    }
    if (most < best_most || (most == best_most && squares < best_squares)) {
      best = cut;
      best_most = most;
      best_squares = squares;
    }
  };
  if (stages == 1) return {layers};
  const int64_t between = stages - 2;
  for (int64_t first = 1; first <= layers - 1 - between; ++first) {
    const int64_t most = layers - first - between, least = between == 0 ? most : 1;
    for (int64_t last = most; last >= least; --last) {
      const int64_t rest = layers - first - last;
      std::vector<int64_t> cut{first};
      for (int64_t s = 0; s < between; ++s) {
        cut.push_back(rest / between + (s >= between - rest % between ? 1 : 0));
      }
      cut.push_back(last);
      consider(cut);
    }
  }
  return best;
}

std::vector<ModelPiece> pipeline_pieces(const ModelConfig& config, int64_t sequence_length, int ranks, int pieces,
                                        int rank) {
  const int stages = ranks * pieces;
  const std::vector<int64_t> layers = balance_layers(config.layers, stages, pipeline_costs(config, sequence_length));
  std::vector<ModelPiece> mine;
  int64_t first = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const int64_t count = layers[static_cast<size_t>(stage)];
    if (stage % ranks == rank) mine.push_back({first, count, stage == 0, stage + 1 == stages});
    first += count;
  }
  return mine;
}

}  // namespace yoke
