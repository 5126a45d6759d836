#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <deque>
#include <optional>

#include "base/error.h"
#include "comm/transport.h"

namespace yoke {

namespace {

void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw UserError(ExitCode::lost_rank, fmt::format("{}: {}", call, text));
}
#define YOKE_MPI(call, ...) check(call(__VA_ARGS__), #call)

/// `count` bytes, of which the next one of an array begins `extent` bytes later.
class Piece {
 public:
  Piece(int64_t count, int64_t extent) {
    YOKE_ASSERT(count <= INT_MAX, "{} bytes", count);
    MPI_Datatype contiguous;
    YOKE_MPI(MPI_Type_contiguous, static_cast<int>(count), MPI_BYTE, &contiguous);
    YOKE_MPI(MPI_Type_create_resized, contiguous, 0, static_cast<MPI_Aint>(extent), &type_);
    YOKE_MPI(MPI_Type_commit, &type_);
    MPI_Type_free(&contiguous);
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece() { MPI_Type_free(&type_); }
  MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

bool finished(std::vector<MPI_Request>& requests) {
  if (requests.empty()) return true;
  int done = 0;
  YOKE_MPI(MPI_Testall, static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
  if (done) requests.clear();
  return done;
}

struct LinkState {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  TransportOptions options;
  MemoryBlock staging;  // two buffers, used in turn
};

char* bytes_of(const TensorView& t) { return static_cast<char*>(t.data); }

/// Data that only moves: one call, or one for each range of the largest message.
class MoveJob : public Job {
 public:
  MoveJob(LinkState& link, const Collective& c) : link_(link), c_(c) {}

  bool advance() override {
    if (!started_) {
      start();
      started_ = true;
      return true;
    }
    done_ = finished(requests_);
    return done_;
  }
  bool next_may_start() const override { return started_; }
  bool done() const override { return done_; }

 private:
  void start() {
    const TensorView& t = c_.input.absent() ? c_.output : c_.input;
    const auto total = static_cast<int64_t>(t.bytes());
    // Of all-to-all the ranges are those of a rank's piece.
    const int64_t piece = c_.kind == CollectiveKind::all_to_all ? total / link_.size : total;
    const auto largest = static_cast<int64_t>(link_.options.largest_message);
    for (int64_t at = 0; at < piece; at += largest) start_range(at, std::min(largest, piece - at), piece);
  }

  void start_range(int64_t at, int64_t bytes, int64_t piece) {
    requests_.push_back(MPI_REQUEST_NULL);
    MPI_Request* request = &requests_.back();
    char *in = bytes_of(c_.input), *out = bytes_of(c_.output);
    const auto count = static_cast<int>(bytes);
    switch (c_.kind) {
      case CollectiveKind::all_gather: {
        const Piece& to = pieces_.emplace_back(bytes, piece);
        const bool in_place = in == out + link_.rank * piece;
        YOKE_MPI(MPI_Iallgather, in_place ? MPI_IN_PLACE : in + at, count, MPI_BYTE, out + at, 1, to.type(), link_.comm,
                 request);
        break;
      }
      case CollectiveKind::all_to_all: {
        const Piece& one = pieces_.emplace_back(bytes, piece);
        YOKE_MPI(MPI_Ialltoall, in + at, 1, one.type(), out + at, 1, one.type(), link_.comm, request);
        break;
      }
      case CollectiveKind::broadcast:
        YOKE_MPI(MPI_Ibcast, in + at, count, MPI_BYTE, c_.peer, link_.comm, request);
        break;
      case CollectiveKind::send:
        YOKE_MPI(MPI_Isend, in + at, count, MPI_BYTE, c_.peer, c_.channel, link_.comm, request);
        break;
      case CollectiveKind::receive:
        YOKE_MPI(MPI_Irecv, out + at, count, MPI_BYTE, c_.peer, c_.channel, link_.comm, request);
        break;
      case CollectiveKind::all_reduce:
      case CollectiveKind::reduce_scatter:
        YOKE_ASSERT(false);
    }
  }

  LinkState& link_;
  Collective c_;
  std::deque<Piece> pieces_;  // until the calls are done
  std::vector<MPI_Request> requests_;
  bool started_ = false, done_ = false;
};

/// A small all-reduce: everybody gets everything and adds it up, in the order of ranks.
class GatherReduceJob : public Job {
 public:
  GatherReduceJob(LinkState& link, const Collective& c) : link_(link), c_(c) {}

  bool advance() override {
    char* gathered = static_cast<char*>(link_.staging.data());
    const size_t bytes = c_.input.bytes();
    if (!started_) {
      const auto count = static_cast<int>(bytes);
      requests_.push_back(MPI_REQUEST_NULL);
      YOKE_MPI(MPI_Iallgather, c_.input.data, count, MPI_BYTE, gathered, count, MPI_BYTE, link_.comm, requests_.data());
      return started_ = true;
    }
    if (!finished(requests_)) return false;
    std::vector<const void*> sources;
    for (int r = 0; r < link_.size; ++r) sources.push_back(gathered + static_cast<size_t>(r) * bytes);
    reduce_arrays(sources, c_.input.data, c_.input.elements(), c_.input.dtype, c_.reduction);
    return done_ = true;
  }
  bool next_may_start() const override { return done_; }
  bool done() const override { return done_; }

 private:
  LinkState& link_;
  Collective c_;
  std::vector<MPI_Request> requests_;
  bool started_ = false, done_ = false;
};

/// Reduce-scatter and large all-reduces, chunk by chunk: an exchange brings this rank its piece of the chunk from all
/// others, which it adds up in the order of ranks; of an all-reduce everybody gathers the sums. Exchange j+2 begins
/// when the sum of chunk j is done, so the order of calls doesn't depend on what arrives when.
class ReduceJob : public Job {
 public:
  ReduceJob(LinkState& link, const Collective& c)
      : link_(link),
        c_(c),
        all_(c.kind == CollectiveKind::all_reduce),
        item_(static_cast<int64_t>(size_of(c.input.dtype))) {
    const int64_t others = link.size - 1;
    const auto largest = static_cast<int64_t>(link.options.largest_message);
    const int64_t buffer = static_cast<int64_t>(link.staging.bytes()) / 2;
    chunk_ = std::max<int64_t>(1, std::min(buffer / others, largest) / item_);
    pieces_ = all_ ? c.input.elements() : c.output.elements();
    const int64_t step = all_ ? chunk_ * link.size : chunk_;
    chunks_ = (pieces_ + step - 1) / step;
  }

  bool advance() override {
    bool happened = false;
    while (true) {
      if (exchanged_ < chunks_ && exchanged_ < summed_ + 2) {
        exchange(exchanged_++);
      } else if (summed_ < exchanged_ && finished(exchanges_[summed_ % 2].requests)) {
        sum(summed_);
        if (all_) gather(summed_);
        ++summed_;
      } else {
        break;
      }
      happened = true;
    }
    if (summed_ == chunks_ && finished(gathers_)) happened = done_ = true;
    return happened;
  }
  // The staging buffers serve one collective at a time.
  bool next_may_start() const override { return summed_ == chunks_; }
  bool done() const override { return done_; }

 private:
  /// Elements [begin, begin + count) of what each rank puts in for one rank.
  struct Range {
    int64_t begin = 0, count = 0;
  };
  struct Exchange {
    std::vector<int> send_counts, send_at, receive_counts, receive_at;
    std::optional<Piece> whole;
    std::vector<MPI_Request> requests;
  };
  struct Gather {
    std::vector<int> counts, at;
  };

  /// What rank r adds up of chunk j, as elements of the input.
  Range range(int64_t j, int r) const {
    if (!all_) {
      const int64_t begin = j * chunk_;
      return {r * pieces_ + begin, std::min(chunk_, pieces_ - begin)};
    }
    const int64_t begin = j * chunk_ * link_.size, elements = std::min(chunk_ * link_.size, pieces_ - begin);
    const int64_t each = (elements + link_.size - 1) / link_.size;
    return {begin + std::min(elements, r * each), std::clamp<int64_t>(elements - r * each, 0, each)};
  }

  char* staged(int64_t j, int r) const {
    const int64_t place = r < link_.rank ? r : r - 1;
    return static_cast<char*>(link_.staging.data()) + (j % 2) * static_cast<int64_t>(link_.staging.bytes() / 2) +
           place * chunk_ * item_;
  }

  void exchange(int64_t j) {
    Exchange& e = exchanges_[j % 2];
    const size_t n = static_cast<size_t>(link_.size);
    for (auto* v : {&e.send_counts, &e.send_at, &e.receive_counts, &e.receive_at}) v->assign(n, 0);
    const Range mine = range(j, link_.rank), first = range(j, 0);
    for (int r = 0; r < link_.size; ++r) {
      if (r == link_.rank) continue;
      const Range theirs = range(j, r);
      // Of a reduce-scatter the pieces are far from each other, so they are counted in whole pieces.
      e.send_counts[r] = all_ ? static_cast<int>(theirs.count * item_) : 1;
      e.send_at[r] = all_ ? static_cast<int>((theirs.begin - first.begin) * item_) : r;
      e.receive_counts[r] = static_cast<int>(mine.count * item_);
      e.receive_at[r] = static_cast<int>(staged(j, r) - staged(j, link_.rank == 0 ? 1 : 0));
    }
    if (!all_) e.whole.emplace(mine.count * item_, pieces_ * item_);
    const char* from = bytes_of(c_.input) + (all_ ? first.begin : j * chunk_) * item_;
    e.requests.push_back(MPI_REQUEST_NULL);
    YOKE_MPI(MPI_Ialltoallv, from, e.send_counts.data(), e.send_at.data(), all_ ? MPI_BYTE : e.whole->type(),
             staged(j, link_.rank == 0 ? 1 : 0), e.receive_counts.data(), e.receive_at.data(), MPI_BYTE, link_.comm,
             e.requests.data());
  }

  void sum(int64_t j) {
    const Range mine = range(j, link_.rank);
    char* own = bytes_of(c_.input) + mine.begin * item_;
    char* out = all_ ? own : bytes_of(c_.output) + j * chunk_ * item_;
    std::vector<const void*> sources;
    for (int r = 0; r < link_.size; ++r) sources.push_back(r == link_.rank ? own : staged(j, r));
    reduce_arrays(sources, out, mine.count, c_.input.dtype, c_.reduction);
  }

  void gather(int64_t j) {
    Gather& g = gathered_.emplace_back();
    const int64_t begin = range(j, 0).begin;
    for (int r = 0; r < link_.size; ++r) {
      const Range theirs = range(j, r);
      g.counts.push_back(static_cast<int>(theirs.count * item_));
      g.at.push_back(static_cast<int>((theirs.begin - begin) * item_));
    }
    gathers_.push_back(MPI_REQUEST_NULL);
    YOKE_MPI(MPI_Iallgatherv, MPI_IN_PLACE, 0, MPI_BYTE, bytes_of(c_.input) + begin * item_, g.counts.data(),
             g.at.data(), MPI_BYTE, link_.comm, &gathers_.back());
  }

  LinkState& link_;
  Collective c_;
  bool all_;
  int64_t item_;        // bytes of an element
  int64_t chunk_ = 0;   // elements that this rank adds up at a time
  int64_t pieces_ = 0;  // all-reduce: all elements; reduce-scatter: elements of a rank's piece
  int64_t chunks_ = 0, exchanged_ = 0, summed_ = 0;
  std::array<Exchange, 2> exchanges_;
  std::deque<Gather> gathered_;
  std::vector<MPI_Request> gathers_;
  bool done_ = false;
};

/// Nothing to move.
class EmptyJob : public Job {
 public:
  bool advance() override { return done_ = true; }
  bool next_may_start() const override { return done_; }
  bool done() const override { return done_; }

 private:
  bool done_ = false;
};

class MpiLink : public Link {
 public:
  MpiLink(MPI_Comm comm, const TransportOptions& options) {
    state_.comm = comm;
    state_.options = options;
    MPI_Comm_rank(comm, &state_.rank);
    MPI_Comm_size(comm, &state_.size);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }

  std::unique_ptr<Job> job(const Collective& c) override {
    const TensorView& t = c.input.absent() ? c.output : c.input;
    if (t.elements() == 0) return std::make_unique<EmptyJob>();
    if (c.kind != CollectiveKind::all_reduce && c.kind != CollectiveKind::reduce_scatter) {
      return std::make_unique<MoveJob>(state_, c);
    }
    if (state_.staging.data() == nullptr) state_.staging = MemoryBlock(std::max(kSmall, state_.options.staging));
    if (c.kind == CollectiveKind::all_reduce && t.bytes() * static_cast<size_t>(state_.size) <= kSmall) {
      return std::make_unique<GatherReduceJob>(state_, c);
    }
    return std::make_unique<ReduceJob>(state_, c);
  }

 private:
  static constexpr size_t kSmall = size_t{64} << 10;
  LinkState state_;
};

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(const TransportOptions& options) : options_(options) {
    int provided = 0, ranks = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    if (provided < MPI_THREAD_FUNNELED) {
      throw UserError(ExitCode::lost_rank,
                      "this MPI can't be used by a program of several threads; yoke needs one "
                      "that offers MPI_THREAD_FUNNELED");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct Place {
      char host[256] = "";
      int process = 0;
    } place;
    gethostname(place.host, sizeof place.host - 1);
    place.process = static_cast<int>(getpid());
    std::vector<Place> places(static_cast<size_t>(ranks));
    YOKE_MPI(MPI_Allgather, &place, sizeof place, MPI_BYTE, places.data(), sizeof place, MPI_BYTE, MPI_COMM_WORLD);
    YOKE_MPI(MPI_Comm_dup, MPI_COMM_WORLD, &beat_comm_);
    MPI_Comm_set_errhandler(beat_comm_, MPI_ERRORS_RETURN);
    for (const Place& p : places) hosts_.emplace_back(p.host), processes_.push_back(p.process);
  }

  int rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(hosts_.size()); }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  const std::vector<int>& processes() const override { return processes_; }

  std::unique_ptr<Link> split(int colour) override {
    MPI_Comm comm = MPI_COMM_NULL;
    YOKE_MPI(MPI_Comm_split, MPI_COMM_WORLD, colour < 0 ? MPI_UNDEFINED : colour, rank_, &comm);
    if (comm == MPI_COMM_NULL) return nullptr;
    return std::make_unique<MpiLink>(comm, options_);
  }

  void send_beats(std::span<const std::byte> beat) override {
    const auto n = static_cast<size_t>(ranks());
    beats_.resize(n * beat.size());
    beats_sent_.resize(n, MPI_REQUEST_NULL);
    for (size_t r = 0; r < n; ++r) {
      int taken = 1;
      if (r == static_cast<size_t>(rank_)) continue;
      YOKE_MPI(MPI_Test, &beats_sent_[r], &taken, MPI_STATUS_IGNORE);
      if (!taken) continue;
      std::byte* copy = beats_.data() + r * beat.size();
      std::copy(beat.begin(), beat.end(), copy);
      YOKE_MPI(MPI_Isend, copy, static_cast<int>(beat.size()), MPI_BYTE, static_cast<int>(r), 0, beat_comm_,
               &beats_sent_[r]);
    }
  }

  void take_beats(size_t bytes, const std::function<void(int, const std::byte*)>& heard) override {
    std::vector<std::byte> beat(bytes);
    while (true) {
      int found = 0;
      MPI_Status status;
      YOKE_MPI(MPI_Iprobe, MPI_ANY_SOURCE, 0, beat_comm_, &found, &status);
      if (!found) return;
      YOKE_MPI(MPI_Recv, beat.data(), static_cast<int>(bytes), MPI_BYTE, status.MPI_SOURCE, 0, beat_comm_, &status);
      heard(status.MPI_SOURCE, beat.data());
    }
  }

  void finalize() override {
    // Nobody sends beats after this, and those that were sent are taken before the end.
    MPI_Barrier(MPI_COMM_WORLD);
    for (int found = 1; found;) {
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, 0, beat_comm_, &found, &status);
      if (found) {
        int bytes = 0;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        std::vector<std::byte> beat(static_cast<size_t>(bytes));
        MPI_Recv(beat.data(), bytes, MPI_BYTE, status.MPI_SOURCE, 0, beat_comm_, &status);
      }
    }
    MPI_Finalize();
  }
  [[noreturn]] void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
  }

 private:
  TransportOptions options_;
  int rank_ = 0;
  MPI_Comm beat_comm_ = MPI_COMM_NULL;
  std::vector<std::byte> beats_;  // as they were sent, by rank
  std::vector<MPI_Request> beats_sent_;
  std::vector<std::string> hosts_;
  std::vector<int> processes_;
};

}  // namespace

std::unique_ptr<Transport> start_mpi_transport(const TransportOptions& options) {
  return std::make_unique<MpiTransport>(options);
}

}  // namespace yoke
