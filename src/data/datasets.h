// What a recipe's data section gives: training rows and validation rows.
#pragma once

#include <memory>
#include <string>

#include "data/dataset.h"
#include "data/options.h"
#include "data/tokenizer/tokenizer.h"

namespace yoke {

struct Datasets {
  std::unique_ptr<TokenDataset> train;
  std::unique_ptr<TokenDataset> validation;  ///< null when nothing is held out
  /// Changes when a file, the tokenizer or an option changes that decides which rows there are. A saved LoaderState is
  /// of use only where it is the same.
  std::string fingerprint;
};

/// Opens or builds the token stores and splits them. A fraction holds out documents (DocumentSplit) when at least
/// kMinHeldOut are to be expected, and else the last rows, so that one long text can be split too; training's and
/// validation's inputs never overlap. UserError when an option is out of range, a file can't be used, a file is both in
/// train and validation, or no row is left on either side; the last names the limit.
Datasets open_datasets(const DataOptions& options, const Tokenizer& tokenizer);

inline constexpr int64_t kMinHeldOut = 16;

}  // namespace yoke
