// Begin- and end-of-sequence tokens, and tokens added later, from the files beside a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/added_tokens.h"

namespace yoke {

class JsonView;

struct SpecialIds {
  std::optional<int32_t> bos, eos;
  std::optional<bool> adds_bos;  ///< `add_bos_token` of tokenizer_config.json
};

/// Looks in tokenizer_config.json, special_tokens_map.json (tokens by text), generation_config.json and config.json
/// (ids; of a list of ends the first) in `folder`; the first that answers counts. UserError (bad_file) when one is
/// malformed or names a token that `id_of` doesn't know or an id that is not below `vocabulary_size`.
SpecialIds find_special_ids(const std::filesystem::path& folder,
                            const std::function<std::optional<int32_t>(std::string_view)>& id_of,
                            int64_t vocabulary_size);

/// `added_tokens_decoder` of tokenizer_config.json, else added_tokens.json; sorted by id. For tokenizers whose own
/// file has no place for them.
std::vector<AddedToken> find_added_tokens(const std::filesystem::path& folder);

/// The entries of one added-token object of tokenizer.json or tokenizer_config.json, the id aside.
AddedToken read_added_token(const JsonView& view);

}  // namespace yoke
