#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/launch.h"
#include "comm/progress.h"

namespace yoke {

namespace {

/// Hands collectives to the thread.
class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(Group group, int rank, int size, std::shared_ptr<Progress> progress, int lane)
      : Communicator(group, rank, size), progress_(std::move(progress)), lane_(lane) {}

 protected:
  Pending start_shared(Context& ctx, const Collective& collective) override {
    ctx.stream.synchronize();
    return {progress_->start(lane_, collective), 0};
  }
  void wait_shared(Context&, const Pending& pending) override { progress_->wait(lane_, pending.sequence()); }

 private:
  std::shared_ptr<Progress> progress_;
  int lane_;
};

class ThreadHost : public HostGroup {
 public:
  explicit ThreadHost(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}

  std::vector<std::string> all_gather(const std::string& text) override {
    const auto ranks = static_cast<size_t>(progress_->transport().ranks());
    std::vector<int64_t> sizes(ranks);
    auto size = static_cast<int64_t>(text.size());
    run(CollectiveKind::all_gather, {&size, DType::i64, {1}}, {sizes.data(), DType::i64, {as_dim(ranks)}},
        "sizes of texts");
    const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
    std::string mine = text, all(ranks * static_cast<size_t>(longest), '\0');
    mine.resize(static_cast<size_t>(longest));
    run(CollectiveKind::all_gather, {mine.data(), DType::u8, {longest}}, {all.data(), DType::u8, {as_dim(all.size())}},
        "texts");
    std::vector<std::string> texts;
    for (size_t r = 0; r < ranks; ++r) {
      texts.push_back(all.substr(r * static_cast<size_t>(longest), static_cast<size_t>(sizes[r])));
    }
    return texts;
  }

  void all_reduce(std::span<double> values, Reduction reduction) override {
    run(CollectiveKind::all_reduce, {values.data(), DType::f64, {as_dim(values.size())}}, {}, "numbers of the host",
        reduction);
  }

  std::string broadcast(const std::string& text) override {
    auto size = static_cast<int64_t>(text.size());
    run(CollectiveKind::broadcast, {&size, DType::i64, {1}}, {}, "size of a text");
    std::string result = text;
    result.resize(static_cast<size_t>(size));
    run(CollectiveKind::broadcast, {result.data(), DType::u8, {size}}, {}, "text");
    return result;
  }

  void barrier() override {
    std::vector<char> all(static_cast<size_t>(progress_->transport().ranks()));
    char mine = 0;
    run(CollectiveKind::all_gather, {&mine, DType::u8, {1}}, {all.data(), DType::u8, {as_dim(all.size())}}, "barrier");
  }

 private:
  static int64_t as_dim(size_t n) { return static_cast<int64_t>(n); }

  void run(CollectiveKind kind, const TensorView& input, const TensorView& output, const char* what,
           Reduction reduction = Reduction::sum) {
    const Collective c{.kind = kind, .input = input, .output = output, .peer = 0, .reduction = reduction, .what = what};
    const int lane = progress_->host_lane();
    progress_->wait(lane, progress_->start(lane, c));
  }

  std::shared_ptr<Progress> progress_;
};

class MpiOfThread : public Mpi {
 public:
  explicit MpiOfThread(const MpiOptions& options)
      : progress_(std::make_shared<Progress>(
            [=] { return start_mpi_transport({.largest_message = options.largest_message}); },
            ProgressOptions{{options.silence, options.timeout}, options.records})) {}
  ~MpiOfThread() override {
    if (!finished_) progress_->abort(static_cast<int>(ExitCode::bug));
  }

  int rank() const override { return progress_->transport().rank(); }
  int ranks() const override { return progress_->transport().ranks(); }
  const std::vector<std::string>& hosts() const override { return progress_->transport().hosts(); }

  Parallel parallel(const MeshSizes& sizes) override {
    YOKE_ASSERT(sizes.ranks() == ranks(), "a mesh of {} for {} ranks", sizes.ranks(), ranks());
    const Mesh mesh(sizes, rank());
    const auto lanes = progress_->open(sizes);
    Parallel::Communicators communicators;
    for (size_t g = 0; g < kGroups; ++g) {
      const auto group = static_cast<Group>(g);
      const std::vector<int> members = mesh.members(group);
      const auto at = std::find(members.begin(), members.end(), rank());
      communicators[g] = std::make_unique<ThreadCommunicator>(group, static_cast<int>(at - members.begin()),
                                                              static_cast<int>(members.size()), progress_, lanes[g]);
    }
    return {mesh, std::move(communicators), std::make_unique<ThreadHost>(progress_)};
  }

  void finish() override {
    ThreadHost(progress_).barrier();
    progress_->finish();
    finished_ = true;
  }
  double waited() const override { return progress_->waited(); }
  void record(const std::filesystem::path& folder) override { progress_->record(folder); }
  void set_patient(bool patient) override { progress_->set_patient(patient); }
  [[noreturn]] void abort(int code) override { progress_->abort(code); }

 private:
  std::shared_ptr<Progress> progress_;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<Mpi> start_mpi(const MpiOptions& options) { return std::make_unique<MpiOfThread>(options); }

}  // namespace yoke
