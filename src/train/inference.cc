#include "train/inference.h"

#include <algorithm>
#include <numeric>

#include "checkpoint/hf_model.h"
#include "device/transfer.h"
#include "ops/elementwise/elementwise.h"
#include "train/engine.h"
#include "train/run_setup.h"

namespace yoke {

InferenceModel::InferenceModel(const InferenceOptions& options)
    : config_(read_hf_config(options.model)),
      folder_(options.model),
      tokenizer_(open_tokenizer(options.tokenizer, options.model, config_.model)),
      device_(Device::cpu(options.threads.value_or(usable_cores()))),
      transformer_(config_.model, compute_type(options.precision)) {}

void InferenceModel::lay_out_model(Context& ctx, int64_t positions) {
  weights_ =
      ParameterBuffers(ctx.arena, "weight", transformer_.parameters(), transformer_.compute(), MemoryKind::weights);
  transformer_.prepare_positions(ctx, positions);
}

template <class LayOut, class Rehearse>
void InferenceModel::prepare(const LayOut& lay_out, const Rehearse& rehearse) {
  YOKE_ASSERT(block_.bytes() == 0, "prepared twice");
  const Device dry = Device::dry(device_);
  Arena counting;
  Stream dry_stream;
  Context dry_ctx{dry, dry_stream, counting};
  lay_out(dry_ctx);
  rehearse(dry_ctx);
  const size_t available = available_memory();
  if (counting.peak() > available) {
    throw UserError(ExitCode::does_not_fit,
                    fmt::format("{}: running it needs {:.2f} GiB and this machine has {:.2f} GiB free. Use a shorter "
                                "sequence, a smaller batch, --precision bf16, or a smaller model.",
                                folder_.string(), static_cast<double>(counting.peak()) / 0x1p30,
                                static_cast<double>(available) / 0x1p30));
  }
  const WeightReader reader(folder_, transformer_.parameters());  // faults of the files before memory is taken
  block_ = MemoryBlock(counting.peak());
  arena_ = Arena(block_.data(), block_.bytes());
  Context ctx{device_, stream_, arena_};
  lay_out(ctx);
  for (size_t row = 0; row < weights_.size(); ++row) {
    write_through_host(ctx, weights_[row], [&](const TensorView& host) { reader.read(row, host); });
  }
}

void InferenceModel::check_length(int64_t length) const {
  if (length <= config_.model.max_positions) return;
  fail_usage("{} tokens are asked for; the model's longest sequence (max_position_embeddings) is {}.", length,
             config_.model.max_positions);
}

void InferenceModel::prepare_evaluation(int64_t rows, int64_t length) {
  check_length(length);
  Batch largest{.rows = rows, .length = length};
  for (auto* field : {&largest.tokens, &largest.targets, &largest.positions, &largest.key_begin}) {
    field->resize(static_cast<size_t>(checked_product(rows, length, "batch x sequence length")));
  }
  prepare(
      [&](Context& ctx) {
        lay_out_model(ctx, length);
        batch_ = DeviceBatch(ctx.arena, rows, length);
      },
      [&](Context& ctx) { evaluate(ctx, largest); });
}

void InferenceModel::prepare_generation(int64_t length) {
  check_length(length);
  capacity_ = length;
  const int64_t piece = std::min(kPiece, length);
  const ModelConfig& model = config_.model;
  prepare(
      [&](Context& ctx) {
        lay_out_model(ctx, length);
        cache_ = {};
        for (int64_t l = 0; l < model.layers; ++l) {
          cache_.k.push_back(ctx.arena.allocate("key cache", transformer_.compute(), {length, model.kv_size()}));
          cache_.v.push_back(ctx.arena.allocate("value cache", transformer_.compute(), {length, model.kv_size()}));
        }
        piece_tokens_ = ctx.arena.allocate("tokens", DType::i32, {piece});
        piece_positions_ = ctx.arena.allocate("positions", DType::i32, {piece});
        piece_key_begin_ = ctx.arena.allocate("key_begin", DType::i32, {piece});
        logits_ = ctx.arena.allocate("logits", transformer_.compute(), {1, model.vocabulary});
        logits_f32_ = ctx.arena.allocate("logits in fp32", DType::f32, {1, model.vocabulary});
      },
      [&](Context& ctx) {
        cache_.filled = length - piece;
        append_piece(ctx, std::vector<int32_t>(static_cast<size_t>(piece)));
        cache_.filled = 0;
      });
}

double InferenceModel::evaluate(Context& ctx, const Batch& batch) {
  ArenaScope scope(ctx.arena);
  const DeviceBatch device =
      batch_.upload(ctx, batch.rows, batch.length, batch.tokens, batch.targets, batch.positions, batch.key_begin);
  WeightStore weights(weights_);
  return sum_of_losses(ctx, transformer_, weights, device,
                       default_loss_chunk(config_.model, transformer_.compute(), device.size()));
}

double InferenceModel::evaluate(const Batch& batch) {
  Context ctx{device_, stream_, arena_};
  return evaluate(ctx, batch);
}

void InferenceModel::append_piece(Context& ctx, std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(cache_.filled));
  const std::vector<int32_t> key_begin(tokens.size(), 0);
  const auto send = [&](std::span<const int32_t> from, const TensorView& to) {
    const TensorView part(to.data, to.dtype, {count});
    upload(ctx, from, part);
    return part;
  };
  const TensorView device_tokens = send(tokens, piece_tokens_);
  const TensorView device_positions = send(positions, piece_positions_);
  const TensorView device_key_begin = send(key_begin, piece_key_begin_);
  WeightStore weights(weights_);
  transformer_.decode(ctx, device_tokens, device_positions, device_key_begin, weights, cache_, logits_);
  convert(ctx, {.x = logits_, .y = logits_f32_});
}

std::vector<float> InferenceModel::append(std::span<const int32_t> tokens) {
  YOKE_ASSERT(!tokens.empty() && cache_.filled + static_cast<int64_t>(tokens.size()) <= capacity_);
  Context ctx{device_, stream_, arena_};
  while (!tokens.empty()) {
    const size_t count = std::min<size_t>(tokens.size(), kPiece);
    append_piece(ctx, tokens.first(count));
    tokens = tokens.subspan(count);
  }
  std::vector<float> logits(static_cast<size_t>(config_.model.vocabulary));
  download(ctx, logits_f32_, std::span(logits));
  return logits;
}

}  // namespace yoke
