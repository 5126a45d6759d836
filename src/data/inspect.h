// Data sets in words, for people.
#pragma once

#include <string>

#include "data/datasets.h"
#include "data/tokenizer/tokenizer.h"

namespace yoke {

/// Documents, tokens, lengths of documents, and for each side its rows and what was cut, dropped and padded.
std::string describe(const Datasets& data);

/// One row decoded, document by document, with positions and the number of supervised tokens. Supervised text is green
/// when `colour`; else text that is not supervised stands in ⟦ ⟧. Control characters but line breaks and tabs are
/// escaped.
std::string describe_row(const Dataset& data, int64_t row, const Tokenizer& tokenizer, bool colour);

}  // namespace yoke
