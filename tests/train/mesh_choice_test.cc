// What `parallel:` makes of a number of ranks.
#include "train/mesh_choice.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace yoke {
namespace {

LoadedRecipe recipe(const std::string& parallel) {
  return parse_recipe("model: {path: m}\ndata: {train: t}\ntrain: {steps: 1}\nparallel: {" + parallel + "}\n",
                      "r.yaml");
}

std::string refusal(const std::string& parallel, std::optional<int> ranks) {
  try {
    mesh_sizes(recipe(parallel), ranks);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

TEST(MeshChoice, DataTakesWhatIsLeft) {
  EXPECT_EQ(mesh_sizes(recipe(""), {}), MeshSizes{});
  EXPECT_EQ(mesh_sizes(recipe("tensor: 2, pipeline: 3"), {}), (MeshSizes{.pipeline = 3, .tensor = 2}));
  EXPECT_EQ(mesh_sizes(recipe("tensor: 2, context: 2"), 12), (MeshSizes{.data = 3, .context = 2, .tensor = 2}));
  EXPECT_EQ(mesh_sizes(recipe("data: 4, shard: 2"), 4), (MeshSizes{.data = 4, .shard = 2}));
  for (int ranks = 1; ranks <= 24; ++ranks) {
    for (int tensor = 1; tensor <= 4; ++tensor) {
      const std::string text = fmt::format("tensor: {}", tensor);
      if (ranks % tensor == 0) {
        EXPECT_EQ(mesh_sizes(recipe(text), ranks).ranks(), ranks);
      } else {
        EXPECT_NE(refusal(text, ranks), "");
      }
    }
  }
}

TEST(MeshChoice, WrongCountsAreNamedWithLegalOnes) {
  EXPECT_EQ(
      refusal("data: 2, tensor: 2", 6),
      "r.yaml:4:18: parallel asks for 4 ranks (data 2 x 2 = 4), but 6 were started; start 4, or set parallel.data "
      "to 3 or auto.");
  EXPECT_EQ(
      refusal("data: 2", 1),
      "r.yaml:4:18: parallel asks for 2 ranks (data 2 x 1 = 2), but 1 were started; start 2, or set parallel.data "
      "to 1 or auto.");
  EXPECT_EQ(refusal("tensor: 2, pipeline: 2", 6),
            "r.yaml: 6 ranks were started, which pipeline 2 x tensor 2 = 4 doesn't divide; start 4 or 8, or change "
            "parallel.");
  EXPECT_EQ(refusal("tensor: 8", 3),
            "r.yaml: 3 ranks were started, which tensor 8 = 8 doesn't divide; start 8, 16 or 24, or change parallel.");
  EXPECT_NE(refusal("data: 1048576, tensor: 1048576, pipeline: 1048576, context: 1048576", {}), "");
}

TEST(MeshChoice, ShardsDivideTheRanksThatCouldHoldThem) {
  EXPECT_EQ(mesh_sizes(recipe("data: 4, context: 3, shard: 6"), {}).shards(), 6);
  EXPECT_EQ(refusal("data: 4, shard: 3", {}),
            "r.yaml:4:28: parallel.shard is 3; it has to divide the 4 ranks of data 4 x context 1: legal are 1, 2, 4.");
  EXPECT_NE(refusal("shard: 3", 4), "");
  EXPECT_EQ(refusal("data: 4, shard: 2, zero: 0", {}),
            "r.yaml:4:28: parallel.shard is 2, but parallel.zero is 0, which shards nothing; set it to 1, 2 or 3, or "
            "leave parallel.shard out.");
}

}  // namespace
}  // namespace yoke
