// What a rank of a pipeline does in a step and in an evaluation: it walks its list, computes its pieces of the model
// and exchanges the residual stream and its gradients with its neighbours.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "comm/communicator.h"
#include "data/batch.h"
#include "model/transformer.h"
#include "train/pipeline_schedule.h"

namespace yoke {

/// What a pipelined pass works with. All of it outlives the pass.
struct PipelineMembers {
  const Transformer& transformer;
  WeightStore& weights;
  Communicator& group;       ///< of the pipeline axis
  const DeviceBatch& batch;  ///< memory for the tokens of a micro-batch
  int tensor_slices = 1;     ///< ranks of the tensor axis: each sends its slice of the tokens
  int64_t loss_chunk = 0;
};

/// Lists of one rank for steps of so many micro-batches.
class PipelineLists {
 public:
  /// `shape.micro_batches`: of a full step.
  PipelineLists(PipelineSchedule schedule, const PipelineShape& shape, int rank);

  const PipelineShape& shape() const { return shape_; }
  int rank() const { return rank_; }
  /// Room for a full step, which is enough for a shorter one.
  const PipelineRoom& room() const { return room_; }
  /// The list of a step of at most shape().micro_batches; it stays until the next call.
  const std::vector<PipelineAction>& actions(int micro_batches);

 private:
  PipelineSchedule schedule_;
  PipelineShape shape_;
  int rank_;
  PipelineRoom room_;
  int listed_ = 0;
  std::vector<PipelineAction> actions_;
};

/// One step's forward and backward. Its memory is the arena's, laid out by the constructor, so it lives in an
/// ArenaScope.
class PipelineStep {
 public:
  /// `token_loss` [micro-batches, T] f32: the last stage writes its rows. `scale`: see LossOptions.
  PipelineStep(Context& ctx, const PipelineMembers& members, PipelineLists& lists, GradientStore& gradients,
               const TensorView& token_loss, float scale);

  /// Returns when everything is sent. Every rank of the group has the same micro-batches.
  void run(std::span<const Batch> micro_batches);

 private:
  /// Memory that micro-batches take turns in.
  struct Pool {
    std::vector<TensorView> memory;
    std::vector<bool> taken;
    size_t take();
    void give_back(size_t place) { taken[place] = false; }
  };
  /// Messages on their way out.
  struct Outbox {
    std::vector<TensorView> memory;
    std::vector<Pending> sent;
    size_t next = 0;
  };
  struct Received {
    size_t place = 0;  ///< in the pool
    TensorView tensor;
    Pending pending;
  };
  /// A micro-batch of a piece between forward and the end of backward.
  struct Open {
    size_t slot = 0;
    MicroBatchMemory memory;
    TensorView gradient;  ///< as backward got it
    size_t gradient_place = 0;
    size_t deferred = 0;
  };
  using Key = std::tuple<int, int>;  ///< stage and micro-batch

  void act(const PipelineAction& action);
  void receive(const PipelineAction& action);
  void send(const PipelineAction& action);
  void forward(const PipelineAction& action);
  void backward(const PipelineAction& action);
  void backward_weight(const PipelineAction& action);
  void close(const PipelineAction& action);

  bool first(int stage) const { return stage == 0; }
  bool last(int stage) const { return stage + 1 == shape_.stages(); }
  DeviceBatch upload(int micro_batch);
  /// The front of a message's memory, for a micro-batch's tokens.
  TensorView message(const TensorView& memory, int micro_batch) const;
  TensorView wait_for(std::map<Key, Received>& received, const Key& key);
  TensorView out(Outbox& box, int micro_batch);

  Context& ctx_;
  PipelineMembers members_;
  PipelineLists& lists_;
  const PipelineShape& shape_;
  GradientStore& gradients_;
  TensorView token_loss_;
  float scale_;
  std::span<const Batch> batches_;
  std::vector<std::vector<MicroBatchMemory>> slots_;  ///< by piece
  std::vector<std::vector<bool>> slots_taken_;
  std::vector<std::vector<BlockActivations>> deferred_;
  std::vector<bool> deferred_taken_;
  Pool inputs_, gradient_inputs_;
  Outbox outputs_, gradient_outputs_;
  std::map<Key, Received> activations_here_, gradients_here_;
  std::map<Key, Open> open_;
};

/// Sum of token losses of a batch, nothing kept, on every rank of the pipeline.
double pipeline_evaluate(Context& ctx, const PipelineMembers& members, const PipelineShape& shape, const Batch& batch);

}  // namespace yoke
