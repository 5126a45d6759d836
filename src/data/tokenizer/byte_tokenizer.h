// The tokenizer `bytes`: ids 0 to 255 are the bytes, then <|bos|> 256, <|eos|> 257, <|pad|> 258.
#pragma once

#include "data/tokenizer/bpe_tokenizer.h"

namespace yoke {

BpeTokenizerParts byte_tokenizer_parts();

}  // namespace yoke
