// What all ranks do to a shared folder: each its part, and none goes on before it is known how the others fared.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "comm/parallel.h"

namespace yoke {

/// Runs `work` on every rank and returns what it returned, by rank. When it failed on any, every rank throws the same
/// UserError, which names the rank and its host, with the exit code of the first that failed. `work` must not
/// communicate. Alone: just `work`.
std::vector<std::string> together(const Parallel& parallel, const std::function<std::string()>& work);

/// Runs `work` on rank 0 only; its text, or its failure, is everybody's.
std::string on_first(const Parallel& parallel, const std::function<std::string()>& work);

/// UserError (usage) on all ranks when one doesn't see what rank 0 writes to `folder`, which exists on rank 0; names
/// that rank and its host. Nothing is left in the folder.
void require_shared_folder(const Parallel& parallel, const std::filesystem::path& folder);

}  // namespace yoke
