// A run of any layout beside a run of one rank: tiny models, one global batch for all, and the whole model's tensors
// put together from what the ranks of a layout hold.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "device/transfer.h"
#include "tests/thread_ranks.h"
#include "tests/train/support.h"

namespace yoke::test {

/// Tensors of the whole model from the pieces that ranks hold. What several ranks hold has to be the same bits.
class WholeTensors {
 public:
  struct Whole {
    std::vector<float> values;
    std::vector<bool> there;
  };

  /// A rank's `piece` of a row: its elements from `begin` on, flat.
  void add(const ParameterRow& row, int64_t begin, const TensorView& piece) {
    if (piece.absent()) return;
    Whole& whole = tensors_[row.name];
    const auto elements = static_cast<size_t>(row.whole.elements());
    if (whole.values.empty()) {
      whole.values.assign(elements, 0.0f);
      whole.there.assign(elements, false);
    }
    const int64_t cols = row.shape_cols(), whole_cols = row.whole.rank() == 1 ? 1 : row.whole.cols();
    size_t part = 0;
    for (int64_t i = 0; i < piece.elements(); ++i) {
      const int64_t local_row = (begin + i) / cols, col = (begin + i) % cols;
      const float value = piece.dtype == DType::bf16 ? to_float(piece.as<bf16>()[i]) : piece.as<float>()[i];
      while (part < row.parts.size() && local_row >= row.parts[part].row + row.parts[part].rows) ++part;
      if (part == row.parts.size()) {  // padding
        if (value != 0) fault(row.name + " has padding that is not zero");
        continue;
      }
      const ParameterPart& p = row.parts[part];
      const auto at = static_cast<size_t>((p.whole_row + local_row - p.row) * whole_cols + row.first_col + col);
      if (whole.there[at] && std::memcmp(&whole.values[at], &value, sizeof value) != 0) {
        fault(row.name + " differs between ranks that hold the same element");
      }
      whole.there[at] = true;
      whole.values[at] = value;
    }
  }

  const std::map<std::string, Whole>& tensors() const { return tensors_; }
  /// What is wrong with them.
  std::vector<std::string> faults() const {
    std::vector<std::string> all = faults_;
    for (const auto& [name, whole] : tensors_) {
      const auto missing = std::count(whole.there.begin(), whole.there.end(), false);
      if (missing > 0) all.push_back(fmt::format("{} elements of {} are on no rank", missing, name));
    }
    return all;
  }

 private:
  void fault(const std::string& text) {
    if (std::find(faults_.begin(), faults_.end(), text) == faults_.end()) faults_.push_back(text);
  }
  std::map<std::string, Whole> tensors_;
  std::vector<std::string> faults_;
};

/// What a run shows of itself.
struct LayoutRun {
  std::vector<StepResult> steps;
  WholeTensors gradients;               ///< of the first step
  WholeTensors before, after, weights;  ///< weights before and after the first step, and at the end
  double evaluation = 0;
  std::vector<std::string> faults;  ///< of ranks against each other and against their plans
};

/// Packed documents of uneven lengths, from 1 to 48 targets of 2 x 48 tokens supervised.
inline constexpr int64_t kInvarianceRows = 2, kInvarianceLength = 48;
inline Batch uneven_batch(int64_t vocabulary, uint64_t number) {
  Batch batch{.rows = kInvarianceRows, .length = kInvarianceLength};
  const RandomStream random{number, 11};
  uint64_t next = 0;
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random.word(next++) % static_cast<uint64_t>(n)); };
  const int64_t rarely = number % 3 == 0 ? 24 : 2;  // one target in so many
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t begin = 0; begin < batch.length;) {
      const int64_t end = std::min(batch.length, begin + 1 + below(30));
      for (int64_t i = begin; i < end; ++i) {
        batch.tokens.push_back(static_cast<int32_t>(below(vocabulary)));
        const bool counts = below(rarely) == 0 || (row == 0 && i == 5);
        batch.targets.push_back(counts ? static_cast<int32_t>(below(vocabulary)) : Batch::kIgnore);
        batch.positions.push_back(static_cast<int32_t>(i - begin));
        batch.key_begin.push_back(static_cast<int32_t>(begin));
        batch.supervised += counts ? 1 : 0;
      }
      begin = end;
    }
  }
  return batch;
}

struct LayoutJob {
  ModelConfig config;
  EngineOptions options;
  int64_t steps = 1;
  UpdateOptions update;
};

/// One rank's part of a job.
inline void run_rank_of(const LayoutJob& job, const Parallel& parallel, LayoutRun& run, std::mutex& mutex) {
  const EngineOptions& options = job.options;
  const int rank = parallel.mesh().rank(), data = options.mesh.data;
  const Device device = Device::cpu(1);
  const EnginePlan plan = plan_engine(device, job.config, options, {}, rank);
  const MemoryBlock block(plan.peak_bytes);
  std::memset(block.data(), 0xff, block.bytes());  // NaN
  Arena arena(block.data(), block.bytes());
  Stream stream;
  Context ctx{device, stream, arena};
  Engine engine(ctx, job.config, options, parallel);
  engine.initialise(ctx, 1);
  const auto collect = [&](const ParameterBuffers& from, WholeTensors& to) {
    const std::lock_guard lock(mutex);
    const ParameterTable& table = engine.transformer().parameters();
    for (size_t i = 0; i < table.size(); ++i) to.add(table[i], engine.parameters().owned(i).begin, from[i]);
  };
  collect(engine.master(), run.before);
  std::vector<StepResult> steps;
  for (int64_t step = 0; step < job.steps; ++step) {
    const int64_t count = options.micro_batches * data;
    std::vector<Batch> own;
    for (int64_t m = parallel.mesh().place().data; m < count; m += data) {
      own.push_back(uneven_batch(job.config.vocabulary, static_cast<uint64_t>(step * 1000 + m)));
    }
    UpdateOptions update = job.update;
    update.step = step + 1;
    steps.push_back(engine.step(ctx, own, update));
    if (step > 0) continue;
    collect(engine.gradients(), run.gradients);
    collect(engine.master(), run.after);
  }
  const double evaluation = engine.evaluate(ctx, uneven_batch(job.config.vocabulary, 999999));
  collect(engine.master(), run.weights);

  const std::lock_guard lock(mutex);
  const auto fault = [&](const std::string& text) { run.faults.push_back(fmt::format("rank {}: {}", rank, text)); };
  if (arena.peak() != plan.peak_bytes) {
    fault(fmt::format("took {} bytes of arena, its plan says {}", arena.peak(), plan.peak_bytes));
  }
  if (run.steps.empty()) {
    run.steps = steps;
    run.evaluation = evaluation;
  }
  for (size_t s = 0; s < steps.size(); ++s) {
    const StepResult &mine = steps[s], &other = run.steps[s];
    const auto differ = [](double a, double b) { return a != b && !(std::isnan(a) && std::isnan(b)); };
    if (differ(mine.loss_sum, other.loss_sum) || differ(mine.gradient_norm, other.gradient_norm) ||
        mine.supervised != other.supervised || mine.finite != other.finite ||
        mine.first_bad_micro_batch != other.first_bad_micro_batch) {
      fault(fmt::format("step {}: loss {} and norm {} of {}, another rank's {}, {} of {}", s + 1, mine.loss_sum,
                        mine.gradient_norm, mine.supervised, other.loss_sum, other.gradient_norm, other.supervised));
    }
  }
  if (evaluation != run.evaluation) fault("another evaluation than another rank's");
}

inline LayoutRun run_layout(const LayoutJob& job) {
  LayoutRun run;
  std::mutex mutex;
  run_ranks(job.options.mesh, [&](const Parallel& parallel) { run_rank_of(job, parallel, run, mutex); });
  for (const auto* tensors : {&run.gradients, &run.before, &run.after, &run.weights}) {
    for (const std::string& fault : tensors->faults()) run.faults.push_back(fault);
  }
  return run;
}

/// NaN is larger than anything.
inline double larger(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

/// Norms of differences over norms.
struct Distances {
  double gradient = 0;        ///< of the whole gradient
  double worst_gradient = 0;  ///< of a tensor's
  double norm = 0;            ///< of the gradient norm of the first step
  double update = 0;          ///< of what the first step changes
  double worst_update = 0;    ///< of a tensor
  double loss = 0;            ///< largest relative difference of a step's loss
  double evaluation = 0;
  std::string worst_tensor;  ///< of gradients

  void widen(const Distances& other) {
    if (other.worst_gradient > worst_gradient) worst_tensor = other.worst_tensor;
    for (const auto field : {&Distances::gradient, &Distances::worst_gradient, &Distances::norm, &Distances::update,
                             &Distances::worst_update, &Distances::loss, &Distances::evaluation}) {
      this->*field = larger(this->*field, other.*field);
    }
  }
  std::string text() const {
    return fmt::format(
        "gradient {:.1e} (worst tensor {:.1e}, {}), norm {:.1e}, first update {:.1e} (worst tensor {:.1e}), losses "
        "{:.1e}, evaluation {:.1e}",
        gradient, worst_gradient, worst_tensor, norm, update, worst_update, loss, evaluation);
  }
};

inline double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

inline Distances distances(const LayoutRun& got, const LayoutRun& want) {
  Distances d;
  double errors[2] = {0, 0}, squares[2] = {0, 0};  // gradient, update
  for (const auto& [name, tensor] : want.gradients.tensors()) {
    const auto of = [&name = name](const WholeTensors& from) -> const std::vector<float>& {
      return from.tensors().at(name).values;
    };
    const auto &gradient = of(got.gradients), &before = of(got.before), &after = of(got.after),
               &want_before = of(want.before), &want_after = of(want.after);
    double error[2] = {0, 0}, square[2] = {0, 0};
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const auto minus = [i](const auto& a, const auto& b) {
        return static_cast<double>(a[i]) - static_cast<double>(b[i]);
      };
      const double g = static_cast<double>(gradient[i]), w = static_cast<double>(tensor.values[i]);
      const double changed = minus(after, before), wanted = minus(want_after, want_before);
      error[0] += (g - w) * (g - w);
      square[0] += w * w;
      error[1] += (changed - wanted) * (changed - wanted);
      square[1] += wanted * wanted;
    }
    for (const size_t k : {0, 1}) {
      errors[k] += error[k];
      squares[k] += square[k];
      double& worst = k == 0 ? d.worst_gradient : d.worst_update;
      const double distance = error[k] == 0 ? 0 : std::sqrt(error[k] / square[k]);
      if (k == 0 && !(distance <= worst)) d.worst_tensor = name;
      worst = larger(worst, distance);
    }
  }
  d.gradient = std::sqrt(errors[0] / squares[0]);
  d.update = std::sqrt(errors[1] / squares[1]);
  d.norm = relative(got.steps[0].gradient_norm, want.steps[0].gradient_norm);
  for (size_t s = 0; s < got.steps.size(); ++s) {
    d.loss = larger(d.loss, relative(got.steps[s].loss(), want.steps[s].loss()));
  }
  if (got.steps.size() == want.steps.size()) d.evaluation = relative(got.evaluation, want.evaluation);
  return d;
}

}  // namespace yoke::test
