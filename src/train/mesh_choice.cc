#include "train/mesh_choice.h"

#include "base/error.h"

namespace yoke {

namespace {

constexpr int64_t kMostRanks = int64_t{1} << 20;

const std::string& place(const LoadedRecipe& loaded, std::string_view key) {
  const auto at = loaded.origins.find(key);
  return at == loaded.origins.end() ? loaded.name : at->second;
}

/// "tensor 2 x pipeline 4": the axes but data that have more than one rank.
std::string inner_text(const ParallelRecipe& parallel) {
  std::vector<std::string> axes;
  if (parallel.context > 1) axes.push_back(fmt::format("context {}", parallel.context));
  if (parallel.pipeline > 1) axes.push_back(fmt::format("pipeline {}", parallel.pipeline));
  if (parallel.tensor > 1) axes.push_back(fmt::format("tensor {}", parallel.tensor));
  return axes.empty() ? "the other axes" : fmt::format("{}", fmt::join(axes, " x "));
}

void check_shard(const LoadedRecipe& loaded, const MeshSizes& sizes) {
  if (sizes.shard == 0) return;
  if (loaded.recipe.parallel.zero == 0) {
    fail_usage(
        "{}: parallel.shard is {}, but parallel.zero is 0, which shards nothing; set it to 1, 2 or 3, or leave "
        "parallel.shard out.",
        place(loaded, "parallel.shard"), sizes.shard);
  }
  const int replicas = sizes.replicas();
  if (replicas % sizes.shard == 0) return;
  fail_usage("{}: parallel.shard is {}; it has to divide the {} ranks of data {} x context {}: legal are {}.",
             place(loaded, "parallel.shard"), sizes.shard, replicas, sizes.data, sizes.context,
             divisors_text(replicas));
}

}  // namespace

std::string divisors_text(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return fmt::format("{}", fmt::join(divisors, ", "));
}

MeshSizes mesh_sizes(const ParallelRecipe& parallel) {
  return {.data = static_cast<int>(parallel.data.value_or(1)),
          .context = static_cast<int>(parallel.context),
          .pipeline = static_cast<int>(parallel.pipeline),
          .tensor = static_cast<int>(parallel.tensor),
          .shard = static_cast<int>(parallel.shard.value_or(0))};
}

MeshSizes mesh_sizes(const LoadedRecipe& loaded, std::optional<int> ranks) {
  const ParallelRecipe& parallel = loaded.recipe.parallel;
  // Each factor is at most 2^20, so that three of them can't overflow.
  const int64_t inner = parallel.context * parallel.pipeline * parallel.tensor;
  if (inner > kMostRanks || inner * parallel.data.value_or(1) > kMostRanks) {
    fail_usage("{}: parallel asks for more than {} ranks ({}, data {}); use fewer.", loaded.name, kMostRanks,
               inner_text(parallel), parallel.data ? std::to_string(*parallel.data) : "auto");
  }
  if (ranks && parallel.data && inner * *parallel.data != *ranks) {
    const std::string instead =
        *ranks % inner == 0 ? fmt::format(", or set parallel.data to {} or auto", *ranks / inner) : "";
    fail_usage("{}: parallel asks for {} ranks (data {} x {} = {}), but {} were started; start {}{}.",
               place(loaded, "parallel.data"), inner * *parallel.data, *parallel.data, inner, inner * *parallel.data,
               *ranks, inner * *parallel.data, instead);
  }
  if (ranks && *ranks % inner != 0) {
    const int64_t below = *ranks / inner * inner;
    const std::string legal = below == 0 ? fmt::format("{}, {} or {}", inner, 2 * inner, 3 * inner)
                                         : fmt::format("{} or {}", below, below + inner);
    fail_usage("{}: {} ranks were started, which {} = {} doesn't divide; start {}, or change parallel.",
               place(loaded, "parallel.data"), *ranks, inner_text(parallel), inner, legal);
  }
  MeshSizes sizes = mesh_sizes(parallel);
  if (ranks) sizes.data = static_cast<int>(*ranks / inner);
  check_shard(loaded, sizes);
  return sizes;
}

}  // namespace yoke
