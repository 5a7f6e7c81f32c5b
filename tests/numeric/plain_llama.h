// A Llama written as plainly as possible, straight from its definition: one whole graph, separate
// projections, attention by a full score matrix, logits of all tokens at once. The oracle of the
// engine's numeric tests; works in float and double.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "common/model_config.h"

namespace fedshard::numeric {

using Parameters = std::map<std::string, at::Tensor>;

// tokens int64 [B, T]; returns logits [B * T, V].
at::Tensor PlainLogits(const ModelConfig& config, const Parameters& parameters,
                       const at::Tensor& tokens);

// tokens int64 [B, T+1]; sum of the losses of all B * T tokens.
at::Tensor PlainLossSum(const ModelConfig& config, const Parameters& parameters,
                        const at::Tensor& tokens);

}  // namespace fedshard::numeric
