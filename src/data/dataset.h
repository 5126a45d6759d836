// Rows of tokens, in a fixed order, computed where they are asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/token_store.h"

namespace yoke {

/// What became of a corpus.
struct DatasetCounts {
  int64_t documents = 0;
  int64_t tokens = 0;  ///< with the end-of-sequence tokens
  int64_t rows = 0;
  int64_t cut_documents = 0;  ///< longer than a row: several rows hold them, nothing is lost (without packing)
  int64_t dropped_rows = 0;   ///< rows without a supervised token: what is left over at the end of the corpus
  int64_t padding = 0;        ///< positions that hold no token of a document
};

class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;

  virtual int64_t rows() const = 0;
  virtual int64_t sequence_length() const = 0;
  /// Writes row `row` into row `at` of `batch`, whose vectors have their size; adds to `batch.supervised`. At least one
  /// target is supervised. Thread-safe.
  virtual void read(int64_t row, Batch& batch, int64_t at) const = 0;
};

/// A batch whose rows are all padding: no target, and every position sees only itself. `pad` is a legal token id.
Batch padding_batch(int64_t rows, int64_t length, int32_t pad);

/// Documents of a store that are taken, by a hash of their index. It depends on nothing else, so a document stays on
/// its side when files are added behind it, and runs with different seeds hold out the same documents.
struct DocumentSplit {
  enum class Part : uint8_t { all, training, validation };
  Part part = Part::all;
  double fraction = 0.0;  ///< of the documents that are validation's

  bool takes(int64_t document) const;
};

/// Rows of the documents of a store.
///
/// Packed: the taken documents one behind the other form a stream; row i holds its tokens [i*L, (i+1)*L). The target of
/// a position is the next token of its document, be it in the next row; an end-of-sequence token has no target, so
/// nothing predicts the first token of another document. A document that goes on in the next row begins there anew,
/// with position 0. The last row is padded; it is dropped when it holds nothing but an end-of-sequence token.
///
/// Not packed: a row holds one document, padded; a longer one is cut into rows of L tokens. The end-of-sequence token
/// is predicted, but isn't an input.
///
/// Padding holds the end-of-sequence id, has position 0, no target, and itself as key_begin.
/// Memory: 8 bytes for 256 documents.
class TokenDataset : public Dataset {
 public:
  /// The rows [first_row, end_row) of what the documents give; end_row -1: to the end.
  TokenDataset(std::shared_ptr<const TokenStore> store, int64_t sequence_length, bool packing, DocumentSplit split = {},
               int64_t first_row = 0, int64_t end_row = -1);

  int64_t rows() const override { return end_row_ - first_row_; }
  int64_t sequence_length() const override { return length_; }
  void read(int64_t row, Batch& batch, int64_t at) const override;

  /// Of all documents taken, whatever the range of rows.
  const DatasetCounts& counts() const { return counts_; }
  const TokenStore& store() const { return *store_; }
  int64_t first_row() const { return first_row_; }
  bool packing() const { return packing_; }

 private:
  struct Place {
    int64_t document;
    int64_t unit;  ///< tokens (packed) or rows (not packed) of the document before it
  };

  int64_t units(int64_t document) const;
  Place locate(int64_t unit) const;
  void copy(int64_t document, int64_t offset, int64_t count, Batch& batch, int64_t at) const;

  std::shared_ptr<const TokenStore> store_;
  int64_t length_;
  bool packing_;
  DocumentSplit split_;
  int64_t first_row_, end_row_;
  std::vector<int64_t> units_before_;  ///< of the documents before number i * kStride
  DatasetCounts counts_;
};

}  // namespace yoke
