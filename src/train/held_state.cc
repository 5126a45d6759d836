#include "train/held_state.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "checkpoint/together.h"
#include "device/transfer.h"
#include "ops/elementwise/elementwise.h"
#include "train/optimizer_moments.h"

namespace yoke {

namespace {

using nlohmann::json;

/// Elements `range` of what a rank holds of a tensor, which begin at element `first`.
TensorView part_of(const TensorView& view, int64_t first, const FlatRange& range) {
  return slice(flat(view), range.begin - first, range.elements());
}

/// Host memory with a device tensor's elements until the next call.
TensorView on_host(Context& ctx, const TensorView& tensor) {
  TensorView host;
  read_through_host(ctx, tensor, [&](const TensorView& t) { host = t; });
  return host;
}

/// Whether this rank writes each row of its table: a row that several pipeline stages hold (tied embeddings) is the
/// first one's.
std::vector<bool> written_rows(const Parallel& parallel, const ParameterTable& table) {
  const Mesh& mesh = parallel.mesh();
  std::vector<bool> writes(table.size(), true);
  if (mesh.sizes().pipeline == 1) return writes;
  const auto all = together(parallel, [&] {
    json ids = json::array();
    for (const ParameterRow& row : table.rows()) ids.push_back(row.id);
    return ids.dump();
  });
  std::map<size_t, int> first_stage;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const int stage = mesh.place_of(static_cast<int>(rank)).pipeline;
    for (const json& id : json::parse(all[rank])) {
      const auto [at, fresh] = first_stage.emplace(id.get<size_t>(), stage);
      at->second = std::min(at->second, stage);
    }
  }
  for (size_t row = 0; row < table.size(); ++row) writes[row] = first_stage.at(table[row].id) == mesh.place().pipeline;
  return writes;
}

}  // namespace

HeldState::HeldState(const Engine& engine, Context& ctx) : engine_(engine), ctx_(ctx) {
  const std::vector<bool> writes = written_rows(engine.parallel(), engine.transformer().parameters());
  add_weights(writes);
  add_optimizer(writes);
}

FlatRange HeldState::written_of(size_t row, const FlatRange& held) const {
  const Parallel& parallel = engine_.parallel();
  // Ranks that hold the same elements: copies of the shard, and for what the tensor axis doesn't divide its ranks.
  const Communicator& same = parallel[engine_.parameters().shards() > 1 ? Group::replicate : Group::replicas];
  int copies = same.size(), index = same.rank();
  if (engine_.transformer().parameters()[row].split == ParameterRow::Split::none) {
    copies *= parallel[Group::tensor].size();
    index = index * parallel[Group::tensor].size() + parallel[Group::tensor].rank();
  }
  return share_of_copy(held, index, copies);
}

void HeldState::add_weights(const std::vector<bool>& writes) {
  const ParameterTable& table = engine_.transformer().parameters();
  for (size_t row = 0; row < table.size(); ++row) {
    const ElementRange owned = engine_.parameters().owned(row);
    const FlatRange held{owned.begin, owned.end};
    if (held.elements() == 0) continue;
    const FlatRange written = writes[row] ? written_of(row, held) : FlatRange{};
    weights_.push_back({"weights." + table[row].name,
                        layout_of(table[row]),
                        held,
                        written,
                        engine_.master()[row],
                        table[row].id,
                        {},
                        {}});
  }
}

void HeldState::add_optimizer(const std::vector<bool>& writes) {
  const ParameterTable& table = engine_.transformer().parameters();
  const std::string scales = "scales.", moments = "moments.", second = kSecondMoment.values;
  for (const OptimizerState::Tensor& tensor : engine_.optimizer_state().tensors()) {
    const ParameterRow& parameter = table[tensor.parameter];
    const std::string kind = tensor.row.name;
    const ElementRange owned = engine_.parameters().owned(tensor.parameter);
    Held held{kind + "." + parameter.name,
              layout_of(parameter),
              {owned.begin, owned.end},
              {},
              tensor.view,
              parameter.id,
              {},
              {}};
    if (kind.starts_with(scales)) {  // follows its codes
      optimizer_.back().scale = tensor.view;
      continue;
    }
    const bool of_elements = tensor.view.elements() == held.held.elements();
    if (!of_elements) {  // factored moments: of whole parameters only
      YOKE_ASSERT(parameter.shape == parameter.whole, "{} of a divided {}", kind, parameter.name);
      held.layout = TensorLayout::whole(tensor.row.shape);
      held.held = {0, tensor.view.elements()};
    }
    if (writes[tensor.parameter]) held.written = written_of(tensor.parameter, held.held);
    if (engine_.options().optimizer.moments == MomentsFormat::int8 && of_elements && parameter.decays()) {
      held.scale_name = scales + kind.substr(moments.size()) + "." + parameter.name;
      held.is_signed = kind != second;
    }
    optimizer_.push_back(std::move(held));
  }
}

QuantizedMoment HeldState::quantized(const Held& moment) const {
  const int64_t begin = moment.held.begin, first_block = begin / kMomentBlock;
  Context& ctx = ctx_;
  return {.values = moment.name,
          .scales = moment.scale_name,
          .is_signed = moment.is_signed,
          .layout = moment.layout,
          .held = moment.held,
          .codes = [&ctx, view = moment.view,
                    begin](const FlatRange& range) { return on_host(ctx, part_of(view, begin, range)); },
          .scaling =
              [&ctx, view = moment.scale, first_block](const FlatRange& range) {
                const FlatRange blocks{range.begin / kMomentBlock, (range.end + kMomentBlock - 1) / kMomentBlock};
                return on_host(ctx, part_of(view, first_block, blocks));
              }};
}

StatePiece HeldState::piece_of(const Held& held, const FlatPiece& piece) const {
  const FlatRange range{piece.begin, piece.begin + piece.region.shape.elements()};
  const TensorView part = reshape(part_of(held.view, held.held.begin, range), piece.region.shape);
  Context& ctx = ctx_;
  return {held.name, part.dtype, held.layout.global, piece.region, [&ctx, part] { return on_host(ctx, part); }};
}

std::vector<StatePiece> HeldState::pieces() const {
  // Blocks have to line up on all ranks for codes to be saved.
  std::set<std::string> as_values;
  const auto misaligned = together(engine_.parallel(), [&] {
    json names = json::array();
    for (const Held& held : optimizer_) {
      if (!held.scale.absent() && !blocks_align(held.layout, kMomentBlock)) names.push_back(held.name);
    }
    return names.dump();
  });
  for (const std::string& names : misaligned) {
    for (const json& name : json::parse(names)) as_values.insert(name.get<std::string>());
  }
  std::vector<StatePiece> pieces;
  const auto add = [&](const Held& held) {
    for (const FlatPiece& piece : flat_pieces(held.layout, held.written)) pieces.push_back(piece_of(held, piece));
  };
  for (const Held& held : weights_) add(held);
  for (const Held& held : optimizer_) {
    if (held.scale.absent()) {
      add(held);
    } else {
      add_pieces(pieces, quantized(held), held.written, as_values.contains(held.name));
    }
  }
  return pieces;
}

std::vector<WeightPiece> HeldState::weights() const {
  std::vector<WeightPiece> pieces;
  for (const Held& held : weights_) {
    for (const FlatPiece& piece : flat_pieces(held.layout, held.written)) {
      pieces.push_back({held.row, piece.region, piece_of(held, piece).view});
    }
  }
  return pieces;
}

void HeldState::read(const Checkpoint& checkpoint) const {
  for (const Held& held : weights_) read(checkpoint, held);
  for (const Held& held : optimizer_) read(checkpoint, held);
}

void HeldState::read(const Checkpoint& checkpoint, const Held& held) const {
  fill(ctx_, {.y = held.view, .value = 0});  // padding
  ctx_.stream.synchronize();
  if (!held.scale.absent()) return read_moment(checkpoint, quantized(held));
  if (!held.scale_name.empty()) {
    const auto values = [&](const TensorView& host) {
      read_moment_values(checkpoint, quantized(held), held.held, host.as<float>());
    };
    return write_through_host(ctx_, held.view, values);
  }
  for (const FlatPiece& piece : flat_pieces(held.layout, held.held)) {
    const FlatRange range{piece.begin, piece.begin + piece.region.shape.elements()};
    const TensorView part = reshape(part_of(held.view, held.held.begin, range), piece.region.shape);
    write_through_host(ctx_, part, [&](const TensorView& host) {
      checkpoint.read(held.name, held.layout.global, piece.region, host);
    });
  }
}

void HeldState::read_weights(const WeightReader& reader) const {
  for (const Held& held : weights_) {
    fill(ctx_, {.y = held.view, .value = 0});
    for (const FlatPiece& piece : flat_pieces(held.layout, held.held)) {
      const FlatRange range{piece.begin, piece.begin + piece.region.shape.elements()};
      const TensorView part = reshape(part_of(held.view, held.held.begin, range), piece.region.shape);
      write_through_host(ctx_, part, [&](const TensorView& host) { reader.read(held.row, piece.region, host); });
    }
  }
}

}  // namespace yoke
