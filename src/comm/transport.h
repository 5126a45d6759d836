// What the progress thread asks of the library that moves data. All calls are made by that one thread; nothing blocks
// except where said.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace yoke {

/// A collective under way.
class Job {
 public:
  virtual ~Job() = default;
  /// Starts what can be started and works on what has arrived. True when something happened. UserError (lost_rank)
  /// when the library says that it can't come to an end.
  virtual bool advance() = 0;
  /// The next collective of the link may make its calls: their order is the same on all ranks.
  virtual bool next_may_start() const = 0;
  virtual bool done() const = 0;
};

/// A group of ranks with an order of calls of its own.
class Link {
 public:
  virtual ~Link() = default;
  virtual std::unique_ptr<Job> job(const Collective& collective) = 0;
};

struct TransportOptions {
  /// Bytes of one message at most; larger ones are cut. At most 2^30: the library counts with 32 bits.
  size_t largest_message = size_t{1} << 30;
  /// Bytes of a link's buffers that pieces to be added arrive in; each holds a chunk of every other rank.
  size_t staging = size_t{2} << 20;
};

/// The library, between its start and its end.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// Host name and process id, by rank.
  virtual const std::vector<std::string>& hosts() const = 0;
  virtual const std::vector<int>& processes() const = 0;

  /// Ranks of one colour, in order of their rank, become a link; null for a negative colour. Every rank calls it;
  /// blocks.
  virtual std::unique_ptr<Link> split(int colour) = 0;
  /// To every other rank that has taken the last one; and what has come from them. All beats have one size.
  virtual void send_beats(std::span<const std::byte> beat) = 0;
  virtual void take_beats(size_t bytes, const std::function<void(int rank, const std::byte* beat)>& heard) = 0;

  /// Every rank calls it at about the same time; blocks. Nothing may be called afterwards.
  virtual void finalize() = 0;
  /// Ends all ranks' processes as far as the launcher reaches them.
  [[noreturn]] virtual void abort(int code) = 0;
};

/// Starts MPI for calls by this thread; blocks until all ranks have.
std::unique_ptr<Transport> start_mpi_transport(const TransportOptions& options);

/// out[i] = sources[0][i] + sources[1][i] + ... in this order, or their maximum (NaN when one is). bf16 and f16 are
/// added in f32 and rounded once. `out` may be one of the sources. dtype: f32 | f64 | bf16 | f16 | i32 | i64
void reduce_arrays(const std::vector<const void*>& sources, void* out, int64_t elements, DType dtype,
                   Reduction reduction);

}  // namespace yoke
