#include "data/dataset.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace yoke {

namespace {

constexpr int64_t kStride = 256;

/// Uniform over 64 bits for consecutive indices (SplitMix64's step and finaliser).
uint64_t hash_of(int64_t document) {
  uint64_t x = (static_cast<uint64_t>(document) + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void pad(Batch& batch, int64_t row, int64_t from, int32_t id) {
  for (int64_t i = from; i < batch.length; ++i) {
    const int64_t at = row * batch.length + i;
    batch.tokens[at] = id;
    batch.targets[at] = Batch::kIgnore;
    batch.positions[at] = 0;
    batch.key_begin[at] = static_cast<int32_t>(i);
  }
}

}  // namespace

Batch padding_batch(int64_t rows, int64_t length, int32_t id) {
  const size_t size = static_cast<size_t>(rows * length);
  Batch batch{rows, length};
  for (auto* field : {&batch.tokens, &batch.targets, &batch.positions, &batch.key_begin}) field->resize(size);
  for (int64_t row = 0; row < rows; ++row) pad(batch, row, 0, id);
  return batch;
}

bool DocumentSplit::takes(int64_t document) const {
  if (part == Part::all) return true;
  const bool held_out = static_cast<double>(hash_of(document) >> 11) * 0x1p-53 < fraction;
  return held_out == (part == Part::validation);
}

TokenDataset::TokenDataset(std::shared_ptr<const TokenStore> store, int64_t sequence_length, bool packing,
                           DocumentSplit split, int64_t first_row, int64_t end_row)
    : store_(std::move(store)),
      length_(sequence_length),
      packing_(packing),
      split_(split),
      first_row_(first_row),
      end_row_(end_row) {
  YOKE_ASSERT(length_ >= 2, "{}", length_);
  int64_t total = 0;
  units_before_.reserve(static_cast<size_t>(store_->documents() / kStride + 1));
  for (int64_t document = 0; document < store_->documents(); ++document) {
    if (document % kStride == 0) units_before_.push_back(total);
    if (!split_.takes(document)) continue;
    total += units(document);
    ++counts_.documents;
    counts_.tokens += store_->length(document);
    counts_.cut_documents += !packing_ && store_->length(document) - 1 > length_;
  }
  counts_.rows = total;
  if (packing_) {
    counts_.rows = (total + length_ - 1) / length_;
    counts_.dropped_rows = total % length_ == 1 ? 1 : 0;
    counts_.rows -= counts_.dropped_rows;
  }
  const int64_t inputs = packing_ ? counts_.tokens - counts_.dropped_rows : counts_.tokens - counts_.documents;
  counts_.padding = counts_.rows * length_ - inputs;
  if (end_row_ < 0) end_row_ = counts_.rows;
  YOKE_ASSERT(first_row_ >= 0 && first_row_ <= end_row_ && end_row_ <= counts_.rows, "rows {} to {} of {}", first_row_,
              end_row_, counts_.rows);
}

int64_t TokenDataset::units(int64_t document) const {
  const int64_t tokens = store_->length(document);
  return packing_ ? tokens : (tokens - 1 + length_ - 1) / length_;
}

TokenDataset::Place TokenDataset::locate(int64_t unit) const {
  const auto behind = std::upper_bound(units_before_.begin(), units_before_.end(), unit);
  int64_t document = (behind - units_before_.begin() - 1) * kStride;
  int64_t left = unit - *(behind - 1);
  for (;; ++document) {
    if (!split_.takes(document)) continue;
    if (left < units(document)) return {document, left};
    left -= units(document);
  }
}

/// Tokens [offset, offset + count) of a document to batch[at...] as a document of their own.
void TokenDataset::copy(int64_t document, int64_t offset, int64_t count, Batch& batch, int64_t at) const {
  const int64_t first = store_->begin(document) + offset;
  const bool reaches_end = offset + count == store_->length(document);
  const int64_t targets = reaches_end ? count - 1 : count;
  store_->read(first, {batch.tokens.data() + at, static_cast<size_t>(count)});
  store_->read(first + 1, {batch.targets.data() + at, static_cast<size_t>(targets)});
  if (reaches_end) batch.targets[at + count - 1] = Batch::kIgnore;
  for (int64_t i = 0; i < count; ++i) {
    batch.positions[at + i] = static_cast<int32_t>(i);
    batch.key_begin[at + i] = static_cast<int32_t>(at % batch.length);
  }
  batch.supervised += targets;
}

void TokenDataset::read(int64_t row, Batch& batch, int64_t at) const {
  YOKE_ASSERT(row >= 0 && row < rows() && batch.length == length_ && at >= 0 && at < batch.rows);
  const int64_t begin = at * length_;
  auto [document, unit] = locate((first_row_ + row) * (packing_ ? length_ : 1));
  int64_t filled = 0;
  if (packing_) {
    for (int64_t offset = unit; filled < length_ && document < store_->documents(); ++document, offset = 0) {
      if (!split_.takes(document)) continue;
      const int64_t count = std::min(store_->length(document) - offset, length_ - filled);
      copy(document, offset, count, batch, begin + filled);
      filled += count;
    }
  } else {
    const int64_t offset = unit * length_;
    filled = std::min(store_->length(document) - 1 - offset, length_);
    copy(document, offset, filled, batch, begin);
  }
  pad(batch, at, filled, store_->eos());
}

}  // namespace yoke
