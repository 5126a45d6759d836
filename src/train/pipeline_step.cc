#include "train/pipeline_step.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "device/transfer.h"
#include "train/context_batch.h"

namespace yoke {

namespace {

using Work = PipelineWork;

/// The first place that is free; there is one, since the schedule said how many are needed.
size_t take_from(std::vector<bool>& taken) {
  const auto free = std::find(taken.begin(), taken.end(), false);
  YOKE_ASSERT(free != taken.end(), "all {} places are taken", taken.size());
  *free = true;
  return static_cast<size_t>(free - taken.begin());
}

TensorView row_front(const TensorView& matrix, int64_t row, int64_t count) {
  return reshape(columns(rows(matrix, row, 1), 0, count), {count});
}

int64_t first_layer_of(const Transformer& transformer, const PipelineShape& shape, int stage) {
  return transformer.pieces()[static_cast<size_t>(shape.piece_of(stage))].first_layer;
}

/// Messages of a pipeline: [tokens of this rank, h].
TensorView allocate_message(Context& ctx, const PipelineMembers& m, const char* name, MemoryKind kind) {
  return ctx.arena.allocate(name, m.transformer.compute(),
                            {m.batch.size() / m.tensor_slices, m.transformer.config().hidden}, kind);
}

TensorView front_of(const TensorView& memory, int64_t tokens) {
  return {memory.data, memory.dtype, {tokens, memory.cols()}};
}

}  // namespace

PipelineLists::PipelineLists(PipelineSchedule schedule, const PipelineShape& shape, int rank)
    : schedule_(schedule), shape_(shape), rank_(rank), room_(pipeline_room(pipeline_walk(schedule, shape), rank)) {}

const std::vector<PipelineAction>& PipelineLists::actions(int micro_batches) {
  YOKE_ASSERT(micro_batches > 0 && micro_batches <= shape_.micro_batches);
  if (listed_ != micro_batches) {
    PipelineShape shape = shape_;
    shape.micro_batches = listed_ = micro_batches;
    actions_ = std::move(pipeline_walk(schedule_, shape).ranks[static_cast<size_t>(rank_)]);
  }
  return actions_;
}

size_t PipelineStep::Pool::take() { return take_from(taken); }

PipelineStep::PipelineStep(Context& ctx, const PipelineMembers& members, PipelineLists& lists, GradientStore& gradients,
                           const TensorView& token_loss, float scale)
    : ctx_(ctx),
      members_(members),
      lists_(lists),
      shape_(lists.shape()),
      gradients_(gradients),
      token_loss_(token_loss),
      scale_(scale) {
  const PipelineRoom& room = lists.room();
  const Transformer& transformer = members.transformer;
  const int64_t tokens = members.batch.size();
  for (size_t piece = 0; piece < room.micro_batches.size(); ++piece) {
    const auto count = static_cast<size_t>(room.micro_batches[piece]);
    slots_.emplace_back();
    for (size_t i = 0; i < count; ++i) slots_[piece].push_back(transformer.allocate(ctx.arena, tokens, false, piece));
    slots_taken_.emplace_back(count, false);
  }
  for (int i = 0; i < room.deferred; ++i) deferred_.push_back(transformer.allocate_deferred(ctx.arena, tokens));
  deferred_taken_.assign(deferred_.size(), false);
  const auto pool = [&](Pool& to, const char* name, int count, MemoryKind kind) {
    for (int i = 0; i < count; ++i) to.memory.push_back(allocate_message(ctx, members_, name, kind));
    to.taken.assign(to.memory.size(), false);
  };
  pool(inputs_, "received activations", room.inputs, MemoryKind::scratch);
  pool(gradient_inputs_, "received gradients", room.gradients, MemoryKind::activation_gradients);
  // While one is on its way the next can be written.
  const auto outbox = [&](Outbox& to, const char* name, MemoryKind kind) {
    for (int i = 0; i < std::min(2, shape_.micro_batches * shape_.pieces); ++i) {
      to.memory.push_back(allocate_message(ctx, members_, name, kind));
    }
    to.sent.resize(to.memory.size());
  };
  const std::vector<ModelPiece>& pieces = transformer.pieces();
  if (!std::all_of(pieces.begin(), pieces.end(), [](const ModelPiece& p) { return p.ends; })) {
    outbox(outputs_, "sent activations", MemoryKind::scratch);
  }
  if (!std::all_of(pieces.begin(), pieces.end(), [](const ModelPiece& p) { return p.embeds; })) {
    outbox(gradient_outputs_, "sent gradients", MemoryKind::activation_gradients);
  }
}

void PipelineStep::run(std::span<const Batch> micro_batches) {
  batches_ = micro_batches;
  for (const PipelineAction& action : lists_.actions(static_cast<int>(micro_batches.size()))) act(action);
  YOKE_ASSERT(open_.empty() && activations_here_.empty() && gradients_here_.empty());
  for (const Outbox* box : {&outputs_, &gradient_outputs_}) {
    for (const Pending& sent : box->sent) members_.group.wait(ctx_, sent);
  }
}

void PipelineStep::act(const PipelineAction& action) {
  switch (action.work) {
    case Work::forward:
      return forward(action);
    case Work::backward:
    case Work::backward_input:
      return backward(action);
    case Work::backward_weight:
      return backward_weight(action);
    case Work::send_activation:
    case Work::send_gradient:
      return send(action);
    case Work::receive_activation:
    case Work::receive_gradient:
      return receive(action);
  }
}

DeviceBatch PipelineStep::upload(int micro_batch) {
  return upload_batch(ctx_, batches_[static_cast<size_t>(micro_batch)], members_.batch);
}

TensorView PipelineStep::message(const TensorView& memory, int micro_batch) const {
  const Batch& batch = batches_[static_cast<size_t>(micro_batch)];
  return front_of(memory, batch.rows * batch.length / members_.tensor_slices);
}

void PipelineStep::receive(const PipelineAction& action) {
  const bool activation = action.work == Work::receive_activation;
  Pool& pool = activation ? inputs_ : gradient_inputs_;
  Received received{.place = pool.take()};
  received.tensor = message(pool.memory[received.place], action.micro_batch);
  received.pending = members_.group.start(ctx_, {.kind = CollectiveKind::receive,
                                                 .output = received.tensor,
                                                 .peer = shape_.rank_of(action.stage + (activation ? -1 : 1)),
                                                 .what = activation ? "activations of a stage" : "gradients of a stage",
                                                 .layer = first_layer_of(members_.transformer, shape_, action.stage)});
  (activation ? activations_here_ : gradients_here_)[{action.stage, action.micro_batch}] = received;
}

void PipelineStep::send(const PipelineAction& action) {
  const bool activation = action.work == Work::send_activation;
  Outbox& box = activation ? outputs_ : gradient_outputs_;
  box.sent[box.next] =
      members_.group.start(ctx_, {.kind = CollectiveKind::send,
                                  .input = message(box.memory[box.next], action.micro_batch),
                                  .peer = shape_.rank_of(action.stage + (activation ? 1 : -1)),
                                  .what = activation ? "activations of a stage" : "gradients of a stage",
                                  .layer = first_layer_of(members_.transformer, shape_, action.stage)});
  box.next = (box.next + 1) % box.memory.size();
}

TensorView PipelineStep::wait_for(std::map<Key, Received>& received, const Key& key) {
  const Received& message = received.at(key);
  members_.group.wait(ctx_, message.pending);
  return message.tensor;
}

TensorView PipelineStep::out(Outbox& box, int micro_batch) {
  members_.group.wait(ctx_, box.sent[box.next]);
  return message(box.memory[box.next], micro_batch);
}

void PipelineStep::forward(const PipelineAction& action) {
  const Key key{action.stage, action.micro_batch};
  const auto piece = static_cast<size_t>(shape_.piece_of(action.stage));
  const DeviceBatch batch = upload(action.micro_batch);
  Open open{.slot = take_from(slots_taken_[piece])};
  open.memory = members_.transformer.front(slots_[piece][open.slot], batch.size());
  PieceLinks links;
  if (!first(action.stage)) links.input = wait_for(activations_here_, key);
  if (!last(action.stage)) links.output = out(outputs_, action.micro_batch);
  members_.transformer.forward(ctx_, batch, members_.weights, open.memory, links);
  if (!first(action.stage)) {
    inputs_.give_back(activations_here_.at(key).place);
    activations_here_.erase(key);
  }
  open_.emplace(key, std::move(open));
}

void PipelineStep::backward(const PipelineAction& action) {
  const Key key{action.stage, action.micro_batch};
  const Transformer& transformer = members_.transformer;
  Open& open = open_.at(key);
  const DeviceBatch batch = upload(action.micro_batch);
  if (last(action.stage)) {
    open.gradient = open.memory.final_norm;
    transformer.loss(ctx_, batch, members_.weights, open.memory, {.chunk = members_.loss_chunk, .scale = scale_},
                     row_front(token_loss_, action.micro_batch, batch.size()), &gradients_, open.gradient);
  } else {
    open.gradient = wait_for(gradients_here_, key);
    open.gradient_place = gradients_here_.at(key).place;
    gradients_here_.erase(key);
  }
  const TensorView input_gradient = first(action.stage) ? TensorView{} : out(gradient_outputs_, action.micro_batch);
  const bool whole = action.work == Work::backward;
  if (!whole) {
    open.deferred = take_from(deferred_taken_);
    transformer.defer(transformer.front(deferred_[open.deferred], batch.size()), open.memory);
  }
  transformer.backward(ctx_, batch, members_.weights, gradients_, open.memory, open.gradient, input_gradient,
                       whole ? BackwardPass::whole : BackwardPass::inputs);
  if (whole) close(action);
}

void PipelineStep::backward_weight(const PipelineAction& action) {
  const Open& open = open_.at({action.stage, action.micro_batch});
  members_.transformer.weight_backward(ctx_, upload(action.micro_batch), gradients_, open.memory, open.gradient);
  deferred_taken_[open.deferred] = false;
  close(action);
}

void PipelineStep::close(const PipelineAction& action) {
  const auto at = open_.find({action.stage, action.micro_batch});
  slots_taken_[static_cast<size_t>(shape_.piece_of(action.stage))][at->second.slot] = false;
  if (!last(action.stage)) gradient_inputs_.give_back(at->second.gradient_place);
  open_.erase(at);
}

double pipeline_evaluate(Context& ctx, const PipelineMembers& members, const PipelineShape& shape, const Batch& batch) {
  ArenaScope scope(ctx.arena);
  const Transformer& transformer = members.transformer;
  const int rank = members.group.rank();
  const DeviceBatch device = upload_batch(ctx, batch, members.batch);
  const int64_t slice = device.size() / members.tensor_slices;
  const TensorView between = allocate_message(ctx, members, "between stages", MemoryKind::scratch);
  const TensorView message = front_of(between, slice);
  const TensorView losses = ctx.arena.allocate("evaluation losses", DType::f32, {device.size()}, MemoryKind::loss);
  const int last = shape.stages() - 1;
  for (int stage = rank; stage <= last; stage += shape.ranks) {
    ArenaScope piece(ctx.arena);
    const int64_t layer = first_layer_of(transformer, shape, stage);
    const char* what = "activations of a stage";
    MicroBatchMemory memory =
        transformer.allocate(ctx.arena, device.size(), true, static_cast<size_t>(shape.piece_of(stage)));
    if (stage > 0) {
      members.group.run(ctx, {.kind = CollectiveKind::receive,
                              .output = message,
                              .peer = shape.rank_of(stage - 1),
                              .what = what,
                              .layer = layer});
    }
    transformer.forward(ctx, device, members.weights, memory, {message, message});
    if (stage < last) {
      members.group.run(ctx, {.kind = CollectiveKind::send,
                              .input = message,
                              .peer = shape.rank_of(stage + 1),
                              .what = what,
                              .layer = layer});
    } else {
      transformer.loss(ctx, device, members.weights, memory, {.chunk = members.loss_chunk}, losses, nullptr, {});
    }
  }
  members.group.run(ctx, {.kind = CollectiveKind::broadcast,
                          .input = losses,
                          .peer = shape.rank_of(last),
                          .what = "losses of an evaluation"});
  const std::vector<float> host = downloaded<float>(ctx, losses);
  return std::accumulate(host.begin(), host.end(), 0.0);
}

}  // namespace yoke
