// How a process learns that it is one of many, and the start and end of MPI.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/parallel.h"

namespace yoke {

/// What a launcher tells a process through its environment.
struct Launched {
  std::string launcher;  ///< "mpirun" or "srun"
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;   ///< among the ranks of this host
  int local_ranks = 1;  ///< of this host
  bool operator==(const Launched&) const = default;
};

/// Nothing where no launcher started this process; MPI is not started. UserError (usage) when what the launcher says
/// makes no sense.
std::optional<Launched> launched();
/// The same from another environment.
std::optional<Launched> launched(const std::function<const char*(const char*)>& variable);

struct MpiOptions {
  /// Seconds after which a rank of which nothing was heard is lost. Threads of their own tell that ranks live, once a
  /// second, however long a step takes.
  double silence = 15;
  /// Seconds that a rank may wait for another that lives but doesn't come, and for all ranks at the start.
  double timeout = 600;
  /// A folder for a record of each rank's last collectives, see comm/recorder.h; empty: none.
  std::filesystem::path records;
  /// Bytes of a message at most, for tests; larger ones are cut.
  size_t largest_message = size_t{1} << 30;
};

/// MPI, from its start to its end. One thread of its own makes all calls of MPI, so that collectives run beside the
/// computation; it outlives every Parallel made here.
///
/// The same thread watches the other ranks. When one is lost or stuck, whatever waits for a collective, or starts one,
/// throws a UserError (lost_rank) that names the rank, its host, the collective and its number; a computation that does
/// neither for 8 s ends all the same, with that message in the log and that exit code.
class Mpi {
 public:
  virtual ~Mpi() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// By rank.
  virtual const std::vector<std::string>& hosts() const = 0;

  /// This rank's communicators. Every rank calls it, with the same sizes, whose product is ranks().
  virtual Parallel parallel(const MeshSizes& sizes) = 0;
  /// Seconds so far that this rank's computation stood still for others.
  virtual double waited() const = 0;
  /// Starts the record of collectives anew in this folder. UserError (bad_file).
  virtual void record(const std::filesystem::path& folder) = 0;
  /// Ranks do work of their own that may take any time, such as reading files: who waits for them meanwhile does not
  /// take them for stuck. One that is silent is lost all the same. All ranks are patient at the same time.
  virtual void set_patient(bool patient) = 0;
  /// Ends MPI. Every rank calls it when its work is done; nothing made here may be used afterwards. Who is destroyed
  /// without it ends all ranks: they would wait forever.
  virtual void finish() = 0;
  /// Ends this process and, as far as the launcher reaches them, those of all ranks. For who leaves by an error, after
  /// having said why.
  [[noreturn]] virtual void abort(int code) = 0;
};

/// As long as this lives ranks are patient. Null: there is only this one.
class Patience {
 public:
  explicit Patience(Mpi* mpi) : mpi_(mpi) { set(true); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;
  ~Patience() { set(false); }

 private:
  void set(bool patient) {
    if (mpi_ != nullptr) mpi_->set_patient(patient);
  }
  Mpi* mpi_;
};

/// Starts MPI; blocks until all ranks have.
std::unique_ptr<Mpi> start_mpi(const MpiOptions& options = {});

}  // namespace yoke
