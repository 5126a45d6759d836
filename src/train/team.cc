#include "train/team.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

namespace yoke {

namespace {

constexpr std::chrono::milliseconds kFirstWord{1000}, kBetweenWords{100};
constexpr int kLastToWait = 20;

void say(const std::string& message) {
  fmt::print(stderr, "yoke: {}\n", message);
  std::fflush(stderr);
}

}  // namespace

Team::Team(const std::optional<Launched>& at, const MpiOptions& options)
    : mpi_(at ? start_mpi(options) : nullptr),
      names_(mpi_ ? mpi_->hosts() : std::vector<std::string>{""}),
      world_(mpi_ ? mpi_->parallel({.data = mpi_->ranks()}) : Parallel::self()) {
  if (mpi_) log_.emplace(rank(), names_.text({rank()}));
}

Parallel Team::parallel(const MeshSizes& sizes) {
  if (alone()) return Parallel::self();
  Parallel parallel = mpi_->parallel(sizes);
  const std::string place = parallel.mesh().place_text();
  log_->set_tag(fmt::format("rank {} ({}{}{})", rank(), names_.host(rank()), place.empty() ? "" : ", ", place));
  return parallel;
}

void Team::share_log() {
  if (!alone()) log_->share(host(), names_);
}

int Team::run(const std::function<int()>& work) {
  if (alone()) return work();
  try {
    const int code = work();
    share_log();
    mpi_->finish();
    log_.reset();
    return code;
  } catch (const SharedError& error) {
    share_log();
    // Before anybody ends: launchers end all ranks when the first one has ended with a code.
    if (first()) say(error.what());
    mpi_->finish();
    log_.reset();
    return static_cast<int>(error.code());
  } catch (const UserError& error) {
    leave(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    leave(ExitCode::does_not_fit, "the system refused more memory; use a smaller batch, sequence or model.");
  } catch (const std::exception& error) {
    leave(ExitCode::bug,
          fmt::format("unexpected failure: {}\nThis may be a bug in yoke; please report it.", error.what()));
  }
}

void Team::leave(ExitCode code, const std::string& message) {
  // Where all ranks come here for the same reason, the first one's word ends the others before they repeat it. Where it
  // is this rank's alone, nobody else ends the job.
  if (!first()) std::this_thread::sleep_for(kFirstWord + kBetweenWords * std::min(rank() - 1, kLastToWait));
  const std::string tag = first() ? "" : log_->tag() + ": ";
  log_.reset();
  say(tag + message);
  mpi_->abort(static_cast<int>(code));
  std::abort();
}

}  // namespace yoke
