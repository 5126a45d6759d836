#include "model/block.h"

#include <cmath>

#include "model/ring_attention.h"
#include "ops/bias/bias.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"

namespace yoke {

void linear_forward(Context& ctx, const TensorView& x, const TensorView& weight, const TensorView& bias,
                    const TensorView& y) {
  matmul(ctx, {.a = x, .b = weight, .c = y, .bias = bias, .transpose_b = true});
}

void linear_weight_backward(Context& ctx, const TensorView& x, const TensorView& dy, GradientStore& gradients,
                            size_t row) {
  const auto slot = gradients.get(row);
  matmul(ctx, {.a = dy, .b = x, .c = slot.gradient, .transpose_a = true, .accumulate = slot.accumulate});
}

void linear_backward(Context& ctx, const TensorView& x, const TensorView& weight, const TensorView& dy,
                     const TensorView& dx, GradientStore& gradients, size_t row, BackwardPass pass) {
  if (pass == BackwardPass::whole) linear_weight_backward(ctx, x, dy, gradients, row);
  if (!dx.absent()) matmul(ctx, {.a = dy, .b = weight, .c = dx});
  if (pass == BackwardPass::whole) gradients.notify(row);  // last: the weight may change there
}

namespace {

/// y [T, outputs here] of everybody's x: the weight has this rank's rows of outputs.
void column_parallel(Context& ctx, Communicator* tensor, const TensorView& x, const TensorView& weight,
                     const TensorView& bias, const TensorView& y, const char* what, int64_t layer) {
  ArenaScope scope(ctx.arena);
  linear_forward(ctx, gather_tokens(ctx, tensor, x, what, layer), weight, bias, y);
}

/// From dy [T, outputs here]: dW, and dx of this rank's tokens. Gathers x again rather than keep all of it. dx may be
/// x: once its weight gradient is there, a product's input makes room for its own gradient.
void column_parallel_backward(Context& ctx, Communicator* tensor, const TensorView& x, const TensorView& weight,
                              const TensorView& dy, const TensorView& dx, GradientStore& gradients, size_t row,
                              BackwardPass pass, const char* what, int64_t layer) {
  ArenaScope scope(ctx.arena);
  const bool whole = pass == BackwardPass::whole;
  const TensorView all = whole ? gather_tokens(ctx, tensor, x, what, layer) : room_for_tokens(ctx, tensor, dx);
  const TensorView addends = divided(tensor) ? all : dx;
  linear_backward(ctx, all, weight, dy, addends, gradients, row, pass);
  scatter_tokens(ctx, tensor, addends, dx, what, layer);
}

/// y [S, outputs] of x [T, inputs here], summed over the ranks: the weight has this rank's columns of inputs.
void row_parallel(Context& ctx, Communicator* tensor, const TensorView& x, const TensorView& weight,
                  const TensorView& y, const char* what, int64_t layer) {
  ArenaScope scope(ctx.arena);
  const TensorView addends = room_for_tokens(ctx, tensor, y);
  linear_forward(ctx, x, weight, {}, addends);
  scatter_tokens(ctx, tensor, addends, y, what, layer);
}

/// From dy [S, outputs]: dW and dx [T, inputs here].
void row_parallel_backward(Context& ctx, Communicator* tensor, const TensorView& x, const TensorView& weight,
                           const TensorView& dy, const TensorView& dx, GradientStore& gradients, size_t row,
                           BackwardPass pass, const char* what, int64_t layer) {
  ArenaScope scope(ctx.arena);
  linear_backward(ctx, x, weight, gather_tokens(ctx, tensor, dy, what, layer), dx, gradients, row, pass);
}

}  // namespace

AttentionShape attention_shape(const ModelConfig& config, int64_t layer, int64_t batch, int64_t queries, int64_t keys) {
  return {.batch = batch,
          .queries = queries,
          .keys = keys,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .query_offset = keys - queries,
          .window = config.window(layer),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)))};
}

Block::Block(const ModelConfig& config, const ParameterTable& parameters, int64_t layer)
    : config_(config), rows_(config), first_row_(parameters.first_of_layer(layer)), layer_(layer) {}

TensorView Block::q(const BlockActivations& a) const {
  return columns(config_.qk_norm ? a.qk : a.qkv, 0, config_.q_size());
}
TensorView Block::k(const BlockActivations& a) const {
  return columns(config_.qk_norm ? a.qk : a.qkv, config_.q_size(), config_.kv_size());
}
TensorView Block::v(const BlockActivations& a) const {
  return columns(a.qkv, config_.q_size() + config_.kv_size(), config_.kv_size());
}

void Block::normalise(Context& ctx, const WeightStore& weights, int norm, const TensorView& residual,
                      const TensorView& delta, const TensorView& sum, const TensorView& y,
                      const TensorView& rstd) const {
  rms_norm_forward(ctx, {.x = residual,
                         .delta = delta,
                         .weight = weights.get(row(norm)),
                         .residual_out = delta.absent() ? TensorView{} : sum,
                         .y = y,
                         .rstd = rstd,
                         .epsilon = static_cast<float>(config_.norm_epsilon)});
}

void Block::normalise_backward(Context& ctx, const WeightStore& weights, GradientStore& gradients, int norm,
                               RmsNormBackward args) const {
  const auto slot = gradients.get(row(norm));
  args.weight = weights.get(row(norm));
  args.dweight = slot.gradient;
  args.accumulate = slot.accumulate;
  rms_norm_backward(ctx, args);
  gradients.notify(row(norm));
}

void Block::project_qkv(Context& ctx, const BlockInputs& in, const WeightStore& weights, BlockActivations& a) const {
  const TensorView bias = rows_.qkv_bias < 0 ? TensorView{} : weights.get(row(rows_.qkv_bias));
  column_parallel(ctx, in.tensor, a.input_norm, weights.get(row(rows_.qkv)), bias, a.qkv, "attention input",
                  layer_);  // [T, (n + 2k) d]
  const TensorView raw = columns(a.qkv, 0, config_.q_size() + config_.kv_size());
  const TensorView qk = config_.qk_norm ? a.qk : raw;
  if (config_.qk_norm) {
    const auto epsilon = static_cast<float>(config_.norm_epsilon);
    rms_norm_forward(ctx, {.x = columns(raw, 0, config_.q_size()),
                           .weight = weights.get(row(rows_.q_norm)),
                           .y = q(a),
                           .rstd = a.q_rstd,
                           .epsilon = epsilon,
                           .groups = config_.heads});
    rms_norm_forward(ctx, {.x = columns(raw, config_.q_size(), config_.kv_size()),
                           .weight = weights.get(row(rows_.k_norm)),
                           .y = k(a),
                           .rstd = a.k_rstd,
                           .epsilon = epsilon,
                           .groups = config_.kv_heads});
  }
  rope(ctx, {.x = qk, .positions = in.positions, .table = in.rope, .y = qk, .head_dim = config_.head_dim});
}

void Block::attend(Context& ctx, const BlockInputs& in, BlockActivations& a) const {
  TensorView keys = k(a), values = v(a);
  int64_t key_count = in.length;
  if (in.cache != nullptr) {
    const auto layer = static_cast<size_t>(layer_);
    convert(ctx, {.x = keys, .y = rows(in.cache->k[layer], in.cache->filled, in.length)});
    convert(ctx, {.x = values, .y = rows(in.cache->v[layer], in.cache->filled, in.length)});
    key_count += in.cache->filled;
    keys = rows(in.cache->k[layer], 0, key_count);
    values = rows(in.cache->v[layer], 0, key_count);
  }
  const AttentionForward args{.shape = attention_shape(config_, layer_, in.batch, in.length, key_count),
                              .q = q(a),
                              .k = keys,
                              .v = values,
                              .key_begin = in.key_begin,
                              .y = a.attention,
                              .lse = a.lse};
  if (divided(in.context)) return ring_attention_forward(ctx, *in.context, layer_, args);
  attention_forward(ctx, args);
}

void Block::project_attention(Context& ctx, const BlockInputs& in, const WeightStore& weights,
                              BlockActivations& a) const {
  row_parallel(ctx, in.tensor, a.attention, weights.get(row(rows_.output)), a.delta, "attention output",
               layer_);  // [S, h]
}

void Block::project_mlp(Context& ctx, const BlockInputs& in, const WeightStore& weights, BlockActivations& a) const {
  column_parallel(ctx, in.tensor, a.mid_norm, weights.get(row(rows_.gate_up)), {}, a.gate_up, "mlp input",
                  layer_);  // [T, 2f]
}

void Block::forward(Context& ctx, const BlockInputs& in, const TensorView& residual, const TensorView& delta,
                    const WeightStore& weights, BlockActivations& a) const {
  normalise(ctx, weights, rows_.input_norm, residual, delta, a.input, a.input_norm, a.input_rstd);  // [S, h]
  project_qkv(ctx, in, weights, a);
  attend(ctx, in, a);
  project_attention(ctx, in, weights, a);
  normalise(ctx, weights, rows_.post_norm, a.input, a.delta, a.mid, a.mid_norm, a.mid_rstd);  // [S, h]
  project_mlp(ctx, in, weights, a);
  swiglu_forward(ctx, {.gate_up = a.gate_up, .y = a.product});                                           // [T, f]
  row_parallel(ctx, in.tensor, a.product, weights.get(row(rows_.down)), a.delta, "mlp output", layer_);  // [S, h]
}

void Block::recompute(Context& ctx, const BlockInputs& in, const WeightStore& weights, const ActivationTable& table,
                      BlockActivations& a) const {
  using A = BlockActivations;
  const auto again = [&](TensorView A::*tensor) { return table.fate(tensor) == Fate::recomputed; };
  if (again(&A::input_norm)) {
    normalise(ctx, weights, rows_.input_norm, a.input, {}, {}, a.input_norm, a.input_rstd);
  }
  if (again(&A::qkv)) {
    project_qkv(ctx, in, weights, a);
    attend(ctx, in, a);
  }
  if (again(&A::mid)) {
    project_attention(ctx, in, weights, a);
    normalise(ctx, weights, rows_.post_norm, a.input, a.delta, a.mid, a.mid_norm, a.mid_rstd);
  } else if (again(&A::mid_norm)) {
    normalise(ctx, weights, rows_.post_norm, a.mid, {}, {}, a.mid_norm, a.mid_rstd);
  }
  if (again(&A::gate_up)) project_mlp(ctx, in, weights, a);
  if (again(&A::product)) swiglu_forward(ctx, {.gate_up = a.gate_up, .y = a.product});
}

void Block::mlp_backward(Context& ctx, const BlockInputs& in, const WeightStore& weights, GradientStore& gradients,
                         BlockActivations& a, const TensorView& gradient, const TensorView& dx,
                         BackwardPass pass) const {
  ArenaScope scope(ctx.arena);
  // In place of what they are the gradients of, unless that is needed again.
  const auto gradient_of = [&](const TensorView& input, const char* name) {
    if (pass == BackwardPass::whole) return input;
    return ctx.arena.allocate(name, input.dtype, input.shape, MemoryKind::activation_gradients);
  };
  const TensorView dproduct = gradient_of(a.product, "product gradient");
  row_parallel_backward(ctx, in.tensor, a.product, weights.get(row(rows_.down)), gradient, dproduct, gradients,
                        row(rows_.down), pass, "mlp output gradient", layer_);
  swiglu_backward(ctx, {.dy = dproduct, .gate_up = a.gate_up, .dgate_up = a.gate_up});  // [T, 2f]
  const TensorView dnorm = gradient_of(a.mid_norm, "norm gradient");
  column_parallel_backward(ctx, in.tensor, a.mid_norm, weights.get(row(rows_.gate_up)), a.gate_up, dnorm, gradients,
                           row(rows_.gate_up), pass, "mlp input gradient", layer_);
  normalise_backward(ctx, weights, gradients, rows_.post_norm,
                     {.dy = dnorm, .x = a.mid, .rstd = a.mid_rstd, .residual_gradient = gradient, .dx = dx});
}

void Block::attention_backward(Context& ctx, const BlockInputs& in, const WeightStore& weights,
                               GradientStore& gradients, BlockActivations& a, const TensorView& gradient,
                               const TensorView& dx, BackwardPass pass) const {
  ArenaScope scope(ctx.arena);
  const int64_t tokens = a.attention.rows(), q_size = config_.q_size(), kv_size = config_.kv_size();
  const DType dtype = gradient.dtype;
  const TensorView dattention =
      ctx.arena.allocate("attention gradient", dtype, {tokens, q_size}, MemoryKind::activation_gradients);
  row_parallel_backward(ctx, in.tensor, a.attention, weights.get(row(rows_.output)), gradient, dattention, gradients,
                        row(rows_.output), pass, "attention output gradient", layer_);

  const TensorView dqkv =
      ctx.arena.allocate("qkv gradient", dtype, {tokens, config_.qkv_size()}, MemoryKind::activation_gradients);
  const AttentionBackward args{.shape = attention_shape(config_, layer_, in.batch, in.length, in.length),
                               .q = q(a),
                               .k = k(a),
                               .v = v(a),
                               .key_begin = in.key_begin,
                               .y = a.attention,
                               .lse = a.lse,
                               .dy = dattention,
                               .dq = columns(dqkv, 0, q_size),
                               .dk = columns(dqkv, q_size, kv_size),
                               .dv = columns(dqkv, q_size + kv_size, kv_size)};
  if (divided(in.context)) {
    ring_attention_backward(ctx, *in.context, layer_, args);
  } else {
    yoke::attention_backward(ctx, args);
  }
  const TensorView dqk = columns(dqkv, 0, q_size + kv_size);
  rope(
      ctx,
      {.x = dqk, .positions = in.positions, .table = in.rope, .y = dqk, .head_dim = config_.head_dim, .inverse = true});
  if (config_.qk_norm) {
    const TensorView dq = columns(dqkv, 0, q_size), dk = columns(dqkv, q_size, kv_size);
    normalise_backward(ctx, weights, gradients, rows_.q_norm,
                       {.dy = dq, .x = columns(a.qkv, 0, q_size), .rstd = a.q_rstd, .dx = dq, .groups = config_.heads});
    normalise_backward(
        ctx, weights, gradients, rows_.k_norm,
        {.dy = dk, .x = columns(a.qkv, q_size, kv_size), .rstd = a.k_rstd, .dx = dk, .groups = config_.kv_heads});
  }
  if (rows_.qkv_bias >= 0) {
    const auto slot = gradients.get(row(rows_.qkv_bias));
    bias_backward(ctx, {.dy = dqkv, .dbias = slot.gradient, .accumulate = slot.accumulate});
    gradients.notify(row(rows_.qkv_bias));
  }

  TensorView dnorm = a.input_norm;
  if (pass == BackwardPass::inputs) {
    convert(ctx, {.x = dqkv, .y = a.qkv});
    dnorm = ctx.arena.allocate("norm gradient", dtype, dnorm.shape, MemoryKind::activation_gradients);
  }
  column_parallel_backward(ctx, in.tensor, a.input_norm, weights.get(row(rows_.qkv)), dqkv, dnorm, gradients,
                           row(rows_.qkv), pass, "attention input gradient", layer_);
  normalise_backward(ctx, weights, gradients, rows_.input_norm,
                     {.dy = dnorm, .x = a.input, .rstd = a.input_rstd, .residual_gradient = gradient, .dx = dx});
}

void Block::weight_backward(Context& ctx, const BlockInputs& in, GradientStore& gradients, const BlockActivations& a,
                            const TensorView& gradient) const {
  // What is cut along tokens is gathered once more.
  const auto product = [&](const TensorView& x, const TensorView& dy, int weight, const char* what) {
    ArenaScope scope(ctx.arena);
    const bool column = weight == rows_.gate_up || weight == rows_.qkv;
    const TensorView all_x = column ? gather_tokens(ctx, in.tensor, x, what, layer_) : x;
    const TensorView all_dy = column ? dy : gather_tokens(ctx, in.tensor, dy, what, layer_);
    linear_weight_backward(ctx, all_x, all_dy, gradients, row(weight));
    gradients.notify(row(weight));
  };
  // The other pass left output gradients where it had no more use for activations.
  product(a.product, gradient, rows_.down, "mlp output gradient");
  product(a.mid_norm, a.gate_up, rows_.gate_up, "mlp input");
  product(a.attention, a.mid, rows_.output, "attention output gradient");
  product(a.input_norm, a.qkv, rows_.qkv, "attention input");
}

}  // namespace yoke
