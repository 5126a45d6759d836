// yoke train: from a recipe to a trained model folder.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "train/commands.h"
#include "train/mesh_choice.h"
#include "train/plan_file.h"
#include "train/settings.h"
#include "train/team.h"
#include "train/trainer.h"
#include "train/training_checkpoint.h"

namespace yoke {

namespace {

std::string profile_table(const Stream& stream) {
  double total = 0;
  for (const auto& [op, t] : stream.totals()) total += t.seconds;
  std::string text = fmt::format("{:<22} {:>9} {:>10} {:>7} {:>10} {:>8}\n", "operation", "calls", "seconds", "share",
                                 "GFLOP/s", "GB/s");
  for (const auto& [op, t] : stream.totals()) {
    if (t.seconds == 0) continue;
    text += fmt::format("{:<22} {:>9} {:>10.3f} {:>6.1f}% {:>10.1f} {:>8.1f}\n", op, t.calls, t.seconds,
                        100 * t.seconds / total, t.flops / t.seconds * 1e-9, t.bytes / t.seconds * 1e-9);
  }
  return text;
}

/// What ranks make sure of before they read anything. The place of this one.
RankSetup agree(Team& team, const std::optional<Launched>& at, LoadedRecipe& loaded) {
  RankSetup ranks;
  const Recipe& recipe = loaded.recipe;
  together(team.host(), team.names(), [&] {
    check_supported(recipe);
    ranks.mesh = mesh_sizes(loaded, at ? std::optional(team.ranks()) : std::nullopt);
    if (team.alone() && ranks.mesh.ranks() > 1) {
      fail_usage("parallel asks for {} ranks, but this process is alone; start it by yoke train, mpirun or srun.",
                 ranks.mesh.ranks());
    }
  });
  if (team.alone()) return ranks;
  const std::string warning = agree_on_start(team.host(), team.names(), YOKE_VERSION, resolved_yaml(loaded));
  if (team.first() && !warning.empty()) log::warn("{}", warning);
  agree_on_folder(team.host(), team.names(), team.rank(), recipe.output);
  team.mpi()->record(std::filesystem::path(recipe.output) / "ranks");
  ranks.rank = team.rank();
  ranks.local_ranks = at->local_ranks;
  ranks.threads = share_cores(team.host(), team.names(), team.rank(), usable_cores(), !recipe.threads);
  ranks.host = &team.host();
  ranks.names = &team.names();
  // Where the recipe leaves the precision open, it is one that all processors have.
  if (!recipe.train.precision) {
    double without[] = {cpu_has_bf16() ? 0.0 : 1.0};
    team.host().all_reduce(without, Reduction::max);
    if (without[0] > 0) loaded.recipe.train.precision = Precision::fp32;
  }
  return ranks;
}

void agree_on_run(Team& team, const RunSetup& run) {
  if (team.alone()) return;
  agree_on(team.host(), team.names(), "the data set", run.data.fingerprint, ExitCode::bad_file,
           "Files, tokenizer and their order must be the same on all hosts.");
  const std::string settled = settings_json(run.config.model, run.engine).dump();
  agree_on(team.host(), team.names(), "the settings that were found", settled, ExitCode::bug, "This is a bug in yoke.");
  const std::string devices = differing(team.host(), team.names(), run.device.str());
  if (team.first() && !devices.empty()) log::warn("ranks compute on different devices: {}", devices);
}

void describe(const RunSetup& run, int ranks) {
  log::info("{}: {} parameters, {}, {} on {}{}", run.recipe().model.path, run.config.model.parameters(),
            run.recipe().model.init == Initialisation::random ? "random weights" : "pretrained weights",
            name_of(run.engine.compute), run.device.str(), ranks > 1 ? fmt::format(", {} ranks", ranks) : "");
  log::info("data: {} rows of {} tokens{}; {} steps of {} sequences", run.data.train->rows(),
            run.engine.sequence_length,
            run.data.validation ? fmt::format(", {} held out", run.data.validation->rows()) : "", run.steps,
            run.recipe().train.global_batch);
  log::info("memory: {}; {:.1f} MiB planned", settings_text(run.config.model, run.engine),
            static_cast<double>(run.planned_resident()) / 0x1p20);
}

/// Weights and state, as the run begins or goes on.
void fill_engine(const RunSetup& run, Engine& engine, Context& ctx, Trainer& trainer,
                 const std::optional<TrainingState>& state) {
  if (state) {
    trainer.restore(*state);
  } else if (run.recipe().model.init == Initialisation::random) {
    engine.initialise(ctx, static_cast<uint64_t>(run.recipe().train.seed));
  } else {
    load_pretrained(run, engine, ctx);
  }
}

/// `setting_up` ends when training begins.
int train_rank(const TrainOptions& options, Team& team, const RunSetup& run, std::optional<Patience>& setting_up) {
  const std::filesystem::path output = run.recipe().output;
  agree_on_run(team, run);
  describe(run, team.ranks());
  together(team.host(), team.names(), [&] {
    std::error_code failure;
    std::filesystem::create_directories(output, failure);
    if (failure) fail_file("{}: can't be made: {}.", output.string(), failure.message());
  });
  const auto write_files = [&] {
    if (!team.first()) return;
    write_file(output / "recipe.yaml", resolved_yaml(run.loaded));
    write_plan(output / "plan.json", run, nullptr);
  };
  if (options.dry_run) {
    // A folder that holds a run keeps the recipe and the plan of that run.
    if (!std::filesystem::exists(output / "metrics.jsonl")) write_files();
    if (team.first()) fmt::print("{}", plan_table(run));
    return 0;
  }

  // Others may have taken what was free when the run was planned.
  together(team.host(), team.names(), [&] { require_memory(run); });
  const Parallel parallel = team.parallel(run.ranks.mesh);
  const MemoryBlock block(run.plan.peak_bytes);
  block.commit(run.device.threads());
  Arena arena(block.data(), block.bytes());
  Stream stream;
  stream.profiled = options.profile;
  Context ctx{run.device, stream, arena};
  Engine engine(ctx, run.config.model, run.engine, parallel);
  Trainer trainer(run, ctx, engine, team);
  std::optional<TrainingState> state;
  together(team.host(), team.names(), [&] { state = load_run(run, engine, ctx); });
  write_files();  // not before: a run that is refused leaves the files of the earlier run alone
  fill_engine(run, engine, ctx, trainer, state);
  stream.clear_totals();
  setting_up.reset();
  const ExitCode code = trainer.train();
  if (options.profile && team.first()) fmt::print(stderr, "{}", profile_table(stream));
  return static_cast<int>(code);
}

/// What the ranks of one start say on a terminal goes there, past mpirun's pipes: rank 0 can draw its progress bar.
void use_terminal(const std::string& terminal) {
  const int fd = terminal.empty() ? -1 : ::open(terminal.c_str(), O_WRONLY | O_NOCTTY);
  if (fd < 0) return;
  ::dup2(fd, STDERR_FILENO);
  ::close(fd);
}

}  // namespace

int train(const TrainOptions& options) {
  const std::optional<Launched> at = launched();
  if (at && at->rank == 0) use_terminal(options.terminal);
  std::optional<LoadedRecipe> loaded;
  std::exception_ptr fault;
  try {
    loaded = load_recipe(options.recipe, options.overrides);
  } catch (const UserError&) {
    fault = std::current_exception();
  }
  Team team(at, {.timeout = loaded ? loaded->recipe.parallel.timeout : MpiOptions().timeout});
  return team.run([&] {
    std::optional<Patience> patience(team.mpi());
    if (at && (team.rank() != at->rank || team.ranks() != at->ranks)) {
      fail_usage(
          "{} started this as rank {} of {}, but MPI says rank {} of {}: launcher and MPI don't know each other. yoke "
          "is "
          "linked with Open MPI: use its mpirun, srun --mpi=pmix, or let yoke train start the ranks.",
          at->launcher, at->rank, at->ranks, team.rank(), team.ranks());
    }
    together(team.host(), team.names(), [&] {
      if (fault) std::rethrow_exception(fault);
    });
    const RankSetup ranks = agree(team, at, *loaded);
    return train_rank(options, team, set_up(*loaded, options.resume, ranks), patience);
  });
}

}  // namespace yoke
