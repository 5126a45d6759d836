// Which layers a virtual pipeline stage computes.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/parameters.h"

namespace yoke {

/// Forward work of the parts of a model, in any unit.
struct PipelineCosts {
  double embedding = 0;
  double layer = 1;
  double head = 0;  ///< final norm and loss included
};

/// FLOPs a token: 2 a weight of every product, and 2 s n d for causal attention over s tokens (n heads of size d).
PipelineCosts pipeline_costs(const ModelConfig& config, int64_t sequence_length);

/// Layers of each virtual stage, in order: such that the costliest stage is as cheap as possible and, among those
/// cuts, the sum of the squared costs is least; of equal ones, later stages have more layers, since they hold fewer
/// micro-batches at a time. UserError (usage) when a stage would have no layer.
std::vector<int64_t> balance_layers(int64_t layers, int64_t stages, const PipelineCosts& costs);

/// What rank `rank` of `ranks` computes, `pieces` virtual stages dealt out in turn, see PipelineShape. UserError as
/// balance_layers().
std::vector<ModelPiece> pipeline_pieces(const ModelConfig& config, int64_t sequence_length, int ranks, int pieces,
                                        int rank);

}  // namespace yoke
