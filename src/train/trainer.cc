#include "train/trainer.h"

#include <unistd.h>

#include <cmath>

#include "base/log.h"
#include "train/learning_rate.h"
#include "train/plan_file.h"
#include "train/training_checkpoint.h"

namespace yoke {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

Trainer::Trainer(const RunSetup& run, Context& ctx, Engine& engine, Team& team)
    : run_(run),
      ctx_(ctx),
      engine_(engine),
      team_(team),
      loader_(*run.data.train, run.loader),
      pace_(team, run.ranks.mesh) {}

void Trainer::restore(const TrainingState& state) {
  state_ = state;
  saved_at_ = state.step;
  loader_.restore(state.loader);
  scaler_.restore(state.scaler);
}

StepResult Trainer::step(const StepData& data) {
  const TrainRecipe& train = run_.recipe().train;
  const int64_t step = state_.step + 1;
  return engine_.step(ctx_, data.batches,
                      {.learning_rate = learning_rate(train, run_.steps, step),
                       .beta1 = train.betas[0],
                       .beta2 = train.betas[1],
                       .epsilon = train.epsilon,
                       .weight_decay = train.weight_decay,
                       .clip_norm = train.clip_norm,
                       .loss_scale = engine_.options().compute == DType::f16 ? scaler_.scale() : 1.0,
                       .step = step,
                       .seed = static_cast<uint64_t>(train.seed)});
}

bool Trainer::accept(const StepResult& result, const StepData& data) {
  const bool scaled = engine_.options().compute == DType::f16;
  if (result.finite) {
    bad_steps_ = 0;
    if (scaled) scaler_.good_step();
    return true;
  }
  ++state_.skipped;
  const std::string where = fmt::format("rows before {} of epoch {}", data.after.position, data.after.epoch + 1);
  if (scaled && std::isfinite(result.loss_sum)) {
    const double scale = scaler_.scale();
    if (!scaler_.overflow()) {
      stop_non_finite(
          fmt::format("Step {}: fp16 gradients overflow although the loss scale is at its least ({}). Use "
                      "bf16, or a smaller learning rate.",
                      state_.step + 1, scale));
    }
    log::info("step {}: fp16 gradients overflowed at loss scale {}; step skipped, scale now {}", state_.step + 1, scale,
              scaler_.scale());
    return false;
  }
  const std::string what =
      result.first_bad_micro_batch >= 0
          ? fmt::format("the loss of micro-batch {} of {}", result.first_bad_micro_batch + 1, data.batches.size())
          : "the gradient";
  const char* left_out =
      engine_.options().consume_gradients ? "tensors without a finite gradient not updated" : "update skipped";
  log::warn("step {}: {} is not finite; {} ({})", state_.step + 1, what, left_out, where);
  if (++bad_steps_ >= kMaxBadSteps) {
    stop_non_finite(
        fmt::format("Training became non-finite: {} at step {}, {} times in a row ({}). Use a smaller "
                    "learning rate, more warm-up or clipping, or look at the data there.",
                    what, state_.step + 1, bad_steps_, where));
  }
  return false;
}

void Trainer::check_first_step(const StepResult& result, const StepData& data) {
  together(team_.host(), team_.names(), [&] { refuse_dead(engine_.dead_parameters(result, data.batches)); });
}

void Trainer::refuse_dead(const std::vector<std::string>& dead) const {
  if (dead.empty()) return;
  std::string names;
  for (size_t i = 0; i < dead.size() && i < 8; ++i) names += (i ? ", " : "") + dead[i];
  throw UserError(ExitCode::non_finite,
                  fmt::format("After the first step {} parameter{} no gradient at all: {}{}. Weights of zeros or a "
                              "damaged checkpoint do this; look at the model in {}.",
                              dead.size(), dead.size() == 1 ? " has" : "s have", names, dead.size() > 8 ? ", ..." : "",
                              run_.recipe().model.path));
}

Measured Trainer::record_memory() const {
  const Measured measured{.peak_bytes = ctx_.arena.peak(),
                          .resident_bytes = resident_memory().peak,
                          .step_seconds = first_step_seconds_,
                          .rank_peaks = bytes_by_rank(team_.alone() ? nullptr : &team_.host(), ctx_.arena.peak())};
  if (team_.first()) write_plan(output() / "plan.json", run_, &measured);
  return measured;
}

void Trainer::after_first_step(double seconds) {
  first_step_seconds_ = seconds;
  const Measured measured = record_memory();
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
  log::info(
      "memory: arena planned {:.1f} MiB, used {:.1f} MiB; resident planned {:.1f} MiB, was {:.1f} MiB; a step: planned "
      "at least {:.3f} s, took {:.3f} s",
      mib(run_.plan.peak_bytes), mib(measured.peak_bytes), mib(run_.planned_resident()), mib(measured.resident_bytes),
      run_.plan.step_seconds, seconds);
}

void Trainer::report(const StepResult& result, const StepData& data, double seconds) {
  const double now = seconds / static_cast<double>(data.rows * run_.engine.sequence_length);
  seconds_per_token_ = seconds_per_token_ == 0 ? now : 0.9 * seconds_per_token_ + 0.1 * now;
  const double flops =
      run_.config.model.training_flops_per_token(run_.engine.sequence_length) / seconds_per_token_ / team_.ranks();
  StepReport report{
      .step = state_.step,
      .total_steps = run_.steps,
      .epoch = static_cast<double>(data.after.epoch) +
               static_cast<double>(data.after.position) / static_cast<double>(run_.data.train->rows()),
      .loss = result.loss(),
      .learning_rate = learning_rate(run_.recipe().train, run_.steps, state_.step),
      .grad_norm = result.gradient_norm,
      .tokens = state_.tokens,
      .tokens_per_second = 1 / seconds_per_token_,
      .mfu = run_.rates.flops_per_second > 0 ? std::optional(flops / run_.rates.flops_per_second) : std::nullopt,
      .memory = static_cast<int64_t>(ctx_.arena.peak()),
      .seconds = seconds_since(begin_),
      .skipped = state_.skipped};
  const bool logged = is_logged(state_.step, run_.steps, run_.recipe().log.every);
  if (logged) {
    report.slow_ranks = pace_.share();
    team_.share_log();
  }
  if (!team_.first()) return;
  progress_->step(report);
  if (logged) metrics_->step(report);
}

void Trainer::evaluate(bool last) {
  if (!run_.data.validation) return;
  const auto begin = Clock::now();
  Loader loader(*run_.data.validation, {.micro_batch = run_.engine.micro_batch,
                                        .global_batch = run_.engine.micro_batch * run_.loader.ranks,
                                        .rank = run_.loader.rank,
                                        .ranks = run_.loader.ranks,
                                        .shuffle = false,
                                        .limit = run_.data.validation->rows()});
  double sum = 0, supervised = 0;
  while (const auto data = loader.next()) {
    for (const Batch& batch : data->batches) {
      sum += engine_.evaluate(ctx_, batch);
      supervised += static_cast<double>(batch.supervised);
    }
  }
  if (!team_.alone()) {
    // Ranks that share samples all have their loss.
    double sums[] = {sum, supervised};
    engine_.parallel().host().all_reduce(sums, Reduction::sum);
    const double copies = static_cast<double>(team_.ranks()) / run_.loader.ranks;
    sum = sums[0] / copies;
    supervised = sums[1] / copies;
  }
  const double loss = sum / supervised;
  if (!std::isfinite(loss)) {
    const std::string message = fmt::format(
        "Step {}: the validation loss is not finite. Use a smaller learning rate or more warm-up.", state_.step);
    if (last) throw UserError(ExitCode::non_finite, message + newest_state());
    log::warn("{}", message);
    return;
  }
  const EvaluationReport report{
      .step = state_.step, .loss = loss, .tokens = static_cast<int64_t>(supervised), .seconds = seconds_since(begin)};
  if (!team_.first()) return;
  progress_->evaluation(report);
  metrics_->evaluation(report);
}

void Trainer::save() {
  const Patience patience(team_.mpi());
  state_.loader = loader_.state();
  state_.scaler = scaler_.state();
  save_run(run_, engine_, ctx_, state_);
  saved_at_ = state_.step;
}

bool Trainer::try_save() {
  try {
    save();
    return true;
  } catch (const UserError& error) {
    if (error.code() == ExitCode::lost_rank) throw;
    log::error("checkpoint at step {} was not written: {}", state_.step, error.what());
    return false;
  }
}

std::string Trainer::newest_state() const {
  if (saved_at_ < 0) return "";
  return fmt::format(" The newest saved state is of step {}, in {}.", saved_at_, (output() / "checkpoints").string());
}

bool Trainer::stop_requested(const InterruptGuard& interrupt) const {
  if (team_.alone()) return interrupt.requested();
  double asked[] = {interrupt.requested() ? 1.0 : 0.0};
  engine_.parallel().host().all_reduce(asked, Reduction::max);
  return asked[0] > 0;
}

void Trainer::stop_non_finite(const std::string& message) {
  if (state_.step > 0 && saved_at_ != state_.step) try_save();
  throw UserError(ExitCode::non_finite, message + newest_state());
}

ExitCode Trainer::train() {
  const Recipe& recipe = run_.recipe();
  const InterruptGuard interrupt;
  if (!team_.alone()) {
    log::info("{}", agree_on_samples(team_.host(), team_.names(), run_.ranks.mesh, loader_.next_samples_hash()));
  }
  if (team_.first()) {
    metrics_.emplace(output() / "metrics.jsonl", state_.step);
    progress_.emplace(STDERR_FILENO, recipe.log.every);
  }
  begin_ = Clock::now();
  const auto due = [&](int64_t every) { return every > 0 && state_.step % every == 0; };

  bool stopped = false;
  while (state_.step < run_.steps) {
    pace_.begin();
    stopped = stop_requested(interrupt);
    if (stopped) break;
    const auto data = loader_.next();
    pace_.read();
    if (!data) break;  // skipped steps used up the data of an epoch-limited run
    const auto begin = Clock::now();
    const StepResult result = step(*data);
    const double seconds = seconds_since(begin);
    if (first_step_done_) pace_.end();  // the first one is slow on all ranks, each in its own way
    state_.tokens += data->rows * run_.engine.sequence_length;
    if (!accept(result, *data)) continue;
    ++state_.step;
    if (!first_step_done_) {
      check_first_step(result, *data);
      after_first_step(seconds);
      first_step_done_ = true;
    }
    report(result, *data, seconds);
    const bool last = state_.step == run_.steps;
    if (last || due(recipe.evaluate.every)) evaluate(last);
    if (due(recipe.checkpoint.every)) try_save();
  }
  if (!stopped) return finish();
  progress_.reset();
  pace_.say_total();
  if (saved_at_ != state_.step) save();
  log::info("interrupted after step {}; state saved, continue with --resume auto", state_.step);
  return ExitCode::interrupted;
}

ExitCode Trainer::finish() {
  if (state_.step == 0) stop_non_finite("Not one step was finite before the data ended.");
  if (state_.step < run_.steps) evaluate(true);
  progress_.reset();
  pace_.say_total();
  const bool saved = saved_at_ == state_.step || try_save();
  {
    const Patience patience(team_.mpi());
    export_model(run_, engine_, ctx_, output() / "model");
  }
  if (first_step_done_) record_memory();  // evaluation, checkpoints and export are in it now
  if (!saved) {
    fail_file("The run is done and its model is in {}, but its state was not saved, so it can't be continued.",
              (output() / "model").string());
  }
  return ExitCode::done;
}

}  // namespace yoke
