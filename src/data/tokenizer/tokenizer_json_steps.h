// The steps before and after the model in a tokenizer.json.
#pragma once

#include <vector>

#include "data/tokenizer/decoder.h"
#include "data/tokenizer/json_view.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"

namespace yoke {

/// Each appends the steps of one component; a "Sequence" gives those of its members.
void read_normalizer(const JsonView& view, std::vector<NormalizerStep>& steps);
void read_pre_tokenizer(const JsonView& view, std::vector<PreTokenizerStep>& steps);
void read_decoder(const JsonView& view, std::vector<DecoderStep>& steps);

}  // namespace yoke
