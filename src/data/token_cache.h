// Tokenises a corpus once and finds it again.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/options.h"
#include "data/token_store.h"
#include "data/tokenizer/tokenizer.h"

namespace yoke {

/// Name of a corpus in the cache: a hash of the tokenizer's fingerprint, the format, and every file's path, size and
/// time of modification (to the nanosecond), in order. A content hash would read as much as tokenising does. Nothing
/// else changes the ids: sequence length and packing act when rows are read.
std::string cache_key(const std::vector<std::filesystem::path>& files, Format format, const Tokenizer& tokenizer);

/// The corpus's tokens, from `folder` (created when missing) or made now by `threads` threads; the ids don't depend on
/// how many. A store that is damaged is made again, and the log says why. Memory: a few MiB a thread, whatever the size
/// of the corpus. Several processes may do this at once: each writes under a name of its own and renames.
/// UserError: a file that can't be used (see data/piece.h), a corpus without tokens, a tokenizer without an
/// end-of-sequence token, a folder or disk that can't be written.
std::shared_ptr<const TokenStore> open_corpus(const std::vector<std::filesystem::path>& files, Format format,
                                              const Tokenizer& tokenizer, const std::filesystem::path& folder,
                                              int threads);

}  // namespace yoke
